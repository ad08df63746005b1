"""The architecture: what each role does with a request."""
