"""Pictures of a run for its report."""
