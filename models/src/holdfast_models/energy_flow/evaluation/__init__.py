"""What a trained run is worth: measures, speed, sizes, talking to it."""
