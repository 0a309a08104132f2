"""Tasks that need no network: texts and tokens, images, simulated robots, and sequences of them."""
