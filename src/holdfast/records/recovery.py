"""Snapshots, rollbacks, checkpoints and restarts."""

from __future__ import annotations

from .base import Kind as Kind
