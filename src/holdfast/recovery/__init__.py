"""Recovery: snapshots in host memory, rollback after a trial, automatic checkpoints."""
