"""xec: regressor, masked autoencoder and inpainter over the 4760 sensors of a xenon calorimeter."""
