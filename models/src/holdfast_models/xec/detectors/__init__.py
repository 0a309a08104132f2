"""Faults of calorimeter runs, one file each."""
