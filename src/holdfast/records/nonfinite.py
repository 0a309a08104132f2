"""Causes of values that are not finite."""

from __future__ import annotations

from .base import Kind as Kind
