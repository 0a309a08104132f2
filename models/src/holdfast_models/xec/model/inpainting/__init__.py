"""Heads of the inpainter, one file per family."""
