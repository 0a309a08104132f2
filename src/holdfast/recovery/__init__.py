"""Bring a run back: snapshots in host memory, rollback after a trial, automatic checkpoints."""
