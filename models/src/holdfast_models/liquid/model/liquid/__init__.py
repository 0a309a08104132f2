"""Liquid cells: CfC, LTC, their wirings, and the cell that runs as a scan."""
