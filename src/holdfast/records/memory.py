"""Memory: what grew, what was split, what ran out."""

from __future__ import annotations

from .base import Kind as Kind
