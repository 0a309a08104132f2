"""Healthy scripts of the corpus, plain against guarded, the start taken off."""

from __future__ import annotations


def table(count: int) -> list[str]:
    """The table of so many scripts."""
    raise NotImplementedError
