"""What a model family needs beyond the common path, one file a family."""
