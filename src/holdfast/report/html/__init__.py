"""A run as a page or a card, or two compared: nothing is loaded, nothing is sent."""

from __future__ import annotations

from .card import card
from .overlay import overlay_page
from .page import page

__all__ = ["card", "overlay_page", "page"]
