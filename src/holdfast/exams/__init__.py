"""Tests that are ordered on demand, after a symptom: heavy, bounded and switched off again."""
