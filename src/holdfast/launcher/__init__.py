"""Parent process of ``holdfast run``: starts the script, forwards signals, drains and judges."""
