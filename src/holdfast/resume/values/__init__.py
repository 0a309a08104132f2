"""Variables of a script as a tree that a checkpoint can save (``taking``), and back."""
