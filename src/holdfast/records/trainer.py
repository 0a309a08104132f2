"""Epochs, validations and numbers of the trainer."""

from __future__ import annotations

from .base import Kind as Kind
