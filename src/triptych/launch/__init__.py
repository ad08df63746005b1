"""Builds and connects everything: the only package that does. One file a kind of process."""
