"""The language engine: scheduling, attention, sampling, text."""
