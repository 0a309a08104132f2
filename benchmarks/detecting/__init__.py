"""The parts of ``benchmarks/detection.py``: collections of scripts, trials, grades and tables."""
