"""Moves tensors between stages by reference; knows nothing of what they mean."""
