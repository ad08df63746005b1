"""What Transformers gives, split into what the encoder, the language model and their processors need."""
