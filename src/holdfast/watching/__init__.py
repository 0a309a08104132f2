"""``holdfast.watch``: the same guard in a loop of your own, with checkpoints and exact resume."""

from .watch import Watch, watch

__all__ = ["Watch", "watch"]
