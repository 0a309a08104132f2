"""The run as a whole: its start, its end, its policy, failures of holdfast itself."""

from __future__ import annotations

from .base import Kind


class HoldfastError(Kind, kind="holdfast_error"):
    """A part of holdfast failed and was switched off; the training went on."""

    where: str
    error: str
