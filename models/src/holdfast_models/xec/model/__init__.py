"""The models, plain PyTorch; start with ``encoder.py``."""
