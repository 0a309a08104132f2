"""Plasticity: fast weights that change by spike timing, beside the slow ones that are trained."""
