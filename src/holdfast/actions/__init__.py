"""Actions on a bad step: one response, one file."""
