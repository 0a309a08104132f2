"""Resume of an unmodified script: what its loop carries, saved and put back into its frames."""
