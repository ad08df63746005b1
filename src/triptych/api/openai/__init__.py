"""OpenAI's chat completions: JSON to our messages and back."""
