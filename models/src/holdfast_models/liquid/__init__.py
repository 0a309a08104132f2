"""Liquid: spiking encoders, liquid cells and Mamba, with plasticity and continual learning."""
