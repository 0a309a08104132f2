"""The text bridge: reads a sentence onto the surface and writes one from it."""
