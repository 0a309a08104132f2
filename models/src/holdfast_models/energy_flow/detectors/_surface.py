"""What the detectors of the lattice agree on."""

EMPTY = 0.01
"""Share of reached cells up to which a surface counts as empty.

With ``flows.capacity`` far below the cells (20 000 for 64 x 6400) it is still at 0.05.
"""
