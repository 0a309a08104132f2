"""A run as one self-contained page: nothing is loaded, nothing is sent."""

from __future__ import annotations

from .page import page

__all__ = ["page"]
