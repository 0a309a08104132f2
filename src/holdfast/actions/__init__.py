"""What holdfast does about a bad step: one response, one file."""
