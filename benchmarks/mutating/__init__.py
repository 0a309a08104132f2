"""The parts of ``benchmarks/mutations.py``: the faults, and a copy of the sources."""
