"""The first operation that made a non-finite value, its line and its sample."""
