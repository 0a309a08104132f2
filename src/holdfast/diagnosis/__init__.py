"""Tests on demand and watchers: they measure and record, they do not judge."""
