"""What each model is trained for: loss, measures, predictions."""
