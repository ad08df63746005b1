"""One file a question; outputs are compared before times are."""
