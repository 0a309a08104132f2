"""What ranks have in common."""

from __future__ import annotations

from .base import Kind as Kind
