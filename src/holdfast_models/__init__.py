"""Reference model families that train under holdfast; they arrive one package at a time."""

RECIPES = ("holdfast_models.energy_flow.recipe:RECIPE",)
"""Offered to ``holdfast train``; imported when somebody asks."""
