"""Steps of an optimizer: skipped, clipped, scaled, not covered."""

from __future__ import annotations

from .base import Kind as Kind
