"""Probes: measurements inside training that never wait for the device.

What each column of a step's row means stands in ``records.columns``. A value that was not measured
on a step is NaN.
"""
