"""Datasets, loaders and the way of a batch to the device."""
