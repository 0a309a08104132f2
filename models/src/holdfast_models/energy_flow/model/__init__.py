"""The model in plain PyTorch: what every mode computes, and what they are tested against."""
