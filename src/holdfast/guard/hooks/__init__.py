"""What the engine does when a training loop does something: one file for each kind of event."""
