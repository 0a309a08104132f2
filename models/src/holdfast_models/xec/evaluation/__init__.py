"""What a trained model is worth: metrics, fits, baselines."""
