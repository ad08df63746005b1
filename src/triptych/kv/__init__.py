"""Layout and pages of the KV cache."""
