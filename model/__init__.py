"""Making of the tiny omni model: architecture, tokenizer and processor, and the script that writes them."""
