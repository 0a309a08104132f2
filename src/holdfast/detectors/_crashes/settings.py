"""Settings that a layer, a loss or a loader refuses."""

from __future__ import annotations

from .facts import Crash, CrashCause


def loader(crash: Crash) -> CrashCause | None:
    """Arguments of a DataLoader that exclude each other."""
    if crash.phase != "loading" or crash.type != "ValueError":
        return None
    if crash.find(r"batch_size should be a positive integer|option is mutually exclusive"):
        return CrashCause(
            headline=crash.message.split("\n")[0][:90],
            advice="check the value that reaches the loader: a division by the number of GPUs may "
            "give 0, and a sampler excludes shuffle",
        )
    return None


def distribution(crash: Crash) -> CrashCause | None:
    """Values that a distribution or a probability refuses."""
    odd = crash.find(r"probability tensor contains either `inf`, `nan` or element < 0")
    found = crash.find(r"Expected parameter (\w+)")
    if found is not None and (odd or crash.find(r"Expected parameter \w+ .*of distribution")):
        # The message ends with the values themselves.
        nan = "nan" in crash.message.lower().partition("invalid values")[2]
        what = found[1]
        return CrashCause(
            headline=f"{what} of a distribution holds {'NaN' if nan else 'forbidden values'}",
            advice="the network gives NaN: lower the learning rate, clip gradients, and look at "
            "the first step with a NaN loss"
            if nan
            else "keep it in its range: softplus(x) + 1e-6 for a scale, logits= instead of probs=",
        )
    return None
