"""Spiking units: surrogate gradients, leaky integrate-and-fire, encoder and decoders."""
