"""Picks workers and forwards metadata-only requests; never touches media bytes."""
