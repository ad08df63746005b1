"""A multimodal server whose media preparation, encoding, prefill and decode run, scale and fail apart."""
