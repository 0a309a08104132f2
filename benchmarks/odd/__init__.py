"""Odd input for the commands that read: a run folder, what is done to it, and the calls."""
