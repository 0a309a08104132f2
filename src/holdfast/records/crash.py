"""Ends by an exception: what was raised, where, and what its frames held."""

from __future__ import annotations

from .base import Kind as Kind
