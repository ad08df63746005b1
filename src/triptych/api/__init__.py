"""The OpenAI surface, and the one table from errors to status codes."""
