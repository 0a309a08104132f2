"""``holdfast xec VERB``."""
