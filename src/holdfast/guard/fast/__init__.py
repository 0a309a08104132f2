"""What only makes a step cheaper: everything is right without it, and ``door`` is its only door."""
