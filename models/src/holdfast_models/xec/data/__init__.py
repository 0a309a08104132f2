"""Events: files, normalisation, the synthetic generator."""
