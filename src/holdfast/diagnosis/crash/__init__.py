"""Crash reports: the exception that ended the script."""
