"""What a run's folder says of the files that the script itself writes; no torch."""

KEPT = "cut_off"
"""The folder in that of a run with what a resume has cut off of the files of a script."""
