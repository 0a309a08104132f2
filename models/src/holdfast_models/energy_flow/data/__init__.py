"""Pairs of embeddings: where they come from, how they are split, and files of them."""
