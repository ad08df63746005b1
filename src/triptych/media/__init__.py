"""Bytes → pixels, frames and samples. Knows no model."""
