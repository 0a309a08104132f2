"""The loop of the trainer and what happens around its steps."""
