"""What a statement that stops the loop does: as a guess by names, and where that is sure.

A name alone says little: ``memory.write`` writes no log, ``x.scatter`` draws nothing, and
``value_backup`` saves no state. A kind is told in words only where the owner of the call, or what
was measured, says the same; the guess decides how much has to be seen before anything is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ._lines import SourceLine, words_of

# Kind of work, by what a statement calls.
_CALLS = {
    "checkpoint": {
        "torch.save", "save", "pickle.dump", "json.dump", "joblib.dump", "np.save", "np.savez",
        "save_pretrained", "save_file", "dump", "fsync", "copyfile", "deepcopy", "state_dict",
    },
    "log": {
        "open", "write", "writerow", "writelines", "flush", "print", "to_csv", "add_scalar",
        "add_scalars", "log", "info", "debug", "dumps", "log_metric",
    },
    "plot": {"savefig", "plot", "hist", "scatter", "imshow", "show", "draw", "subplots", "figure"},
    "gc": {"gc.collect", "collect", "empty_cache"},
    "wait": {"sleep", "subprocess.run", "check_output", "system", "popen", "urlopen", "post"},
    "statistics": {
        "histogram", "histc", "add_histogram", "percentile", "quantile", "svd", "svdvals",
        "eigvals", "matrix_rank", "corrcoef", "unique", "bincount", "confusion_matrix",
    },
}  # fmt: skip
# The same by parts of a name, where a function of the user's does it.
_WORDS = {
    "checkpoint": {"save", "checkpoint", "ckpt", "dump", "snapshot", "persist", "backup", "export"},
    "evaluation": {"eval", "evaluate", "evaluation", "valid", "validate", "validation", "test"},
    "plot": {"plot", "draw", "figure", "render", "visualize", "visualise", "picture"},
    "statistics": {"hist", "histogram", "histograms", "stats", "statistics", "spectrum", "norms"},
    "log": {"log", "logs", "logger", "write", "report", "metrics", "summary", "record", "progress"},
}
# Calls that are of their kind whoever owns them.
_CERTAIN = {
    "checkpoint": {
        "save", "save_pretrained", "save_file", "savez", "savez_compressed", "fsync", "copyfile",
        "dump", "save_checkpoint", "save_model", "save_state",
    },
    "log": {
        "print", "writerow", "writerows", "writelines", "to_csv", "add_scalar", "add_scalars",
        "log_metric", "log_metrics",
    },
    "plot": {"savefig", "subplots", "imshow"},
    "gc": {"gc.collect", "empty_cache"},
    "wait": {"sleep", "subprocess.run", "check_output", "os.system", "os.popen", "urlopen"},
    "statistics": {"add_histogram", "corrcoef", "confusion_matrix"},
}  # fmt: skip
# And those of theirs that are where the owner has such a name.
_OWNED = {
    "log": (
        {"write", "flush", "log", "info", "debug", "warning"},
        {"f", "fh", "fp", "file", "out", "log", "logs", "logger", "logging", "writer", "stream",
         "handle", "csv", "stdout", "stderr", "tqdm", "wandb", "mlflow"},
    ),
    "plot": (
        {"plot", "hist", "scatter", "show", "draw", "figure", "bar"},
        {"plt", "pyplot", "ax", "axs", "axes", "fig", "figure", "canvas"},
    ),
    "wait": ({"post", "get", "result", "join"}, {"requests", "future", "thread"}),
}  # fmt: skip
_CERTAIN_WORDS = {
    "checkpoint": {"save", "checkpoint", "ckpt"},
    "plot": {"plot", "plots", "visualize", "visualise"},
    "statistics": {"histogram", "histograms", "statistics", "stats"},
    "log": {"logs", "logger", "logging"},
}
_OPENED = re.compile(r"\bopen\([^()]*[\"'](?:\w*[wax]\w*)[\"']")
# Logarithms write no logs.
_NUMBERS = {
    "torch.log",
    "np.log",
    "numpy.log",
    "math.log",
    "log_prob",
    "log_softmax",
    "log_sigmoid",
}


def by_calls(place: SourceLine) -> str:
    """What a statement may be for, by what it calls; "" where that is not known."""
    place = _without_numbers(place)
    return next((kind for kind, names in _CALLS.items() if place.calls_any(names)), "")


def by_name(function: str, path: Iterable[SourceLine]) -> str:
    """The same, by the names of the functions on the way from the loop to the line."""
    found = set(words_of(function)).union(*(_without_numbers(at).words for at in path))
    return next((kind for kind, words in _WORDS.items() if words & found), "")


def certain(kind: str, function: str, path: Iterable[SourceLine]) -> bool:
    """Whether it is sure that these lines, from the loop on, do work of this kind."""
    path = [_without_numbers(at) for at in path]
    names = set(words_of(function)).union(*(at.words for at in path))
    if _CERTAIN_WORDS.get(kind, set[str]()) & names:
        return True
    return any(_does(kind, at) for at in path)


def _does(kind: str, place: SourceLine) -> bool:
    if place.calls_any(_CERTAIN.get(kind, ())):
        return True
    if kind == "log" and _OPENED.search(place.code):
        return True
    if kind == "checkpoint" and place.calls_any(("state_dict",)):
        return not place.calls_any(("load_state_dict",))
    calls, owners = _OWNED.get(kind, (set[str](), set[str]()))
    parts = [call.split(".") for call in place.calls]
    return any(
        p[-1] in calls and owners & {word for name in p[:-1] for word in words_of(name)}
        for p in parts
    )


def _without_numbers(place: SourceLine) -> SourceLine:
    """The same statement without its logarithms."""
    calls = [c for c in place.calls if c not in _NUMBERS and c.split(".")[-1] not in _NUMBERS]
    return place if len(calls) == len(place.calls) else replace(place, calls=tuple(calls))
