"""Settings that a layer, a loss or a loader refuses."""

from __future__ import annotations

from .facts import Cause, Crash


def loader(crash: Crash) -> Cause | None:
    """Arguments of a DataLoader that exclude each other."""
    if crash.phase != "loading" or crash.type != "ValueError":
        return None
    if crash.find(
        r"prefetch_factor option could only|persistent_workers option needs|timeout option"
    ):
        return Cause(
            headline="a loader option that needs workers",
            advice="set num_workers above 0, or leave prefetch_factor, persistent_workers and "
            "timeout out",
        )
    if crash.find(r"IterableDataset: expected unspecified (\w+)"):
        return Cause(
            headline="an IterableDataset with a sampler or shuffle",
            advice="it gives its samples in its own order: shuffle inside __iter__ (a buffer), and "
            "leave shuffle and sampler out",
        )
    if crash.find(r"batch_size should be a positive integer|option is mutually exclusive"):
        return Cause(
            headline=crash.message.split("\n")[0][:90],
            advice="check the value that reaches the loader: a division by the number of GPUs may "
            "give 0, and a sampler excludes shuffle",
        )
    return None


def distribution(crash: Crash) -> Cause | None:
    """Values that a distribution or a probability refuses."""
    if crash.find(r"probability tensor contains either `inf`, `nan` or element < 0") or crash.find(
        r"Expected parameter \w+ .*of distribution"
    ):
        found = crash.find(r"Expected parameter (\w+)")
        if found is None:  # torch names all three, whichever it was
            return Cause(
                headline="probabilities to draw from are NaN, infinite or below 0",
                advice="which of the three is not said: look at their smallest and largest value "
                "here; logits= takes any finite number, softmax(x, -1) makes probabilities of it",
            )
        # The message ends with the values themselves.
        nan = "nan" in crash.message.lower().partition("invalid values")[2]
        what = found[1]
        return Cause(
            headline=f"{what} of a distribution holds {'NaN' if nan else 'forbidden values'}",
            advice="the network gives NaN: lower the learning rate, clip gradients, and look at "
            "the first step with a NaN loss"
            if nan
            else "keep it in its range: softplus(x) + 1e-6 for a scale, logits= instead of probs=",
        )
    if crash.find("all elements of (input|target) should be between 0 and 1"):
        return Cause(
            headline="BCELoss gets values outside 0 to 1",
            advice="use BCEWithLogitsLoss on the raw output (or sigmoid before BCELoss), and scale "
            "the targets to 0 to 1",
        )
    if crash.find("is non-finite, so it cannot be clipped"):
        return Cause(
            headline="the gradient norm is not finite",
            advice="leave error_if_nonfinite out, holdfast skips such a step and names the line "
            "that makes it",
        )
    return None


def tensors(crash: Crash) -> Cause | None:
    """A tensor with several values where one is expected."""
    if crash.find(r"a Tensor with (\d+) elements cannot be converted to Scalar"):
        return Cause(
            headline="item() of a tensor with several values",
            advice="reduce it first, x.mean().item(), or use x.tolist(); a loss made with "
            "reduction='none' has one value per sample",
        )
    if crash.find("Boolean value of Tensor with more than one value is ambiguous"):
        return Cause(
            headline="a tensor with several values as a condition",
            advice="say which: (x > 0).all() or .any(); a loss class that is called with its "
            "constructor, nn.MSELoss(a, b), gives this too: nn.MSELoss()(a, b)",
        )
    return None


RULES = (loader, distribution, tensors)
