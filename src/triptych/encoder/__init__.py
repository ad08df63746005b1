"""Which items are encoded together, and the forward pass."""
