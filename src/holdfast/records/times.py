"""Where the time of a step goes."""

from __future__ import annotations

from .base import Kind as Kind
