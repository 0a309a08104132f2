"""Kinds of records in a ring: what the training process writes and the drain process reads."""

from __future__ import annotations

EVENT = 1
"""An Event, as JSON."""
BATCH = 2
"""The batch of an incident, as JSON."""
DECLARATION = 3
"""A new table: its number, its name and its columns, as JSON."""
FIRST_ROW = 16
"""Rows of the first table; each further table has the next number."""
