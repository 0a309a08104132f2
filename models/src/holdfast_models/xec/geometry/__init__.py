"""Where the sensors are, which images they form, and who is next to whom.

Everything is computed from formulas; ``survey.json`` is the table they are checked against.
"""
