"""Parts of ``benchmarks/xec.py``: how fast the calorimeter family is, and how good."""
