"""The largest batch that fits, found by trying."""
