"""Continual learning: Fisher information, consolidation, replay, and scores over tasks."""
