"""The state-space block; start with ``mamba.py``."""
