"""The recurrences of the family as one Triton kernel each, forward and backward.

The network is complete without them: each stands for a loop of plain torch that is named at its
top, and is used on a GPU where it computed the same when it was first asked for (``choice``).
"""
