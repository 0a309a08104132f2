"""Predictions as ROOT files, exported models, the dead-channel study."""
