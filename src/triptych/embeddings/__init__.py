"""The encoder cache: keys, and the tiers that hold embeddings."""
