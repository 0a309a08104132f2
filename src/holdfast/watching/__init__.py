"""``holdfast.watch``: the guard for your own loop, with checkpoints and exact resume."""

from .watch import Watch, watch

__all__ = ["Watch", "watch"]
