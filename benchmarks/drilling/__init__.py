"""The drills of ``benchmarks/drills.py``: what is done to a run, and what must be left of it.

score       one try, one row of the table
victim      the training that everything is done to; ``stage`` starts it and reads its traces
kills, flips, places (full disk, read-only folder), workers, storms, spikes
"""
