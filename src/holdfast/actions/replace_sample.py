"""A sample that cannot be read is read again, then replaced by another one.

This happens where a loader makes its batches, in its worker processes as a rule. The batch begins
anew with the random state it began with, so that every other sample is the one it would have been.
What was replaced is told to the training process through memory that both share.
"""

from __future__ import annotations

import errno
import multiprocessing
import operator
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    SequentialSampler,
    Subset,
    get_worker_info,
)
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from ..probes.sample_files import file_of, innermost, length_of
from ..records.crash import RaisedException
from ..records.steps import Unreadable
from ._shared_log import SharedLog

# A share of the samples that may be unreadable, and at least so many: the numbers.
_SHARE, _AT_LEAST = 0.001, 3
# Seconds before each further try: what storage or a network needs to come back; a guess.
_PAUSES = (0.0, 0.1, 1.0)
# Other samples that are tried in its place.
_OTHERS = 3
# About files and their content; images, some archives, addresses and time-outs derive from them.
_OF_DATA = (OSError, EOFError, UnicodeError)
# What the process has run out of: the next sample would fare no better.
_OF_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# Such classes without a common base, by module and name.
_OF_FORMATS = frozenset(
    {
        ("zlib", "error"), ("struct", "error"), ("_struct", "error"), ("binascii", "Error"),
        ("zipfile", "BadZipFile"), ("tarfile", "TarError"), ("tarfile", "ReadError"),
        ("_lzma", "LZMAError"), ("lzma", "LZMAError"), ("json.decoder", "JSONDecodeError"),
        ("_pickle", "UnpicklingError"), ("pickle", "UnpicklingError"), ("_csv", "Error"),
        ("xml.etree.ElementTree", "ParseError"), ("wave", "Error"),
        ("http.client", "IncompleteRead"),
    }
)  # fmt: skip
# Errors of programming, in whatever library they are raised or derived from.
_OF_CODE = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError,
    NameError, NotImplementedError, SyntaxError, TypeError,
)  # fmt: skip
# Readers that raise a plain RuntimeError or ValueError about the content of a file, by module.
_READERS = ("numpy.lib", "torch.serialization", "torchaudio", "torchvision.io", "safetensors")

Describe = Callable[[BaseException], RaisedException]


def of_data(error: BaseException) -> bool:
    """Whether an exception is about what is in a file or about reaching it, and not about code.

    >>> of_data(OSError("image file is truncated")), of_data(KeyError("label"))
    (True, False)
    """
    if not isinstance(error, Exception) or isinstance(error, _OF_CODE):
        return False
    if isinstance(error, _OF_DATA):
        return getattr(error, "errno", None) not in _OF_PROCESS
    names = {(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    if names & _OF_FORMATS:
        return True
    module = type(error).__module__
    if module != "builtins":
        # Classes of decoders and clients; one of the script's own says what its author meant.
        return module != "__main__" and module.split(".")[0] != "torch" and _installed(module)
    return isinstance(error, RuntimeError | ValueError) and _raised_in(error).startswith(_READERS)


def _installed(module: str) -> bool:
    path = getattr(sys.modules.get(module.split(".")[0]), "__file__", None) or ""
    return "site-packages" in path or "dist-packages" in path


def _raised_in(error: BaseException) -> str:
    """The module whose code was running."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "" if at is None else str(at.tb_frame.f_globals.get("__name__", ""))


class SampleReplacement:
    """What is known of one dataset, in the training process and in the workers of its loaders.

    Args:
        dataset: which it is; not kept alive.
        describe: what an Event says of an exception.
    """

    def __init__(self, dataset: Any, describe: Describe) -> None:
        self.is_of = weakref.ref(dataset)
        self.log = SharedLog()
        self.failed = False
        """Whether a sample could not be read, in this process."""
        self._describe = describe
        self._most = max(_AT_LEAST, int(_SHARE * length_of(dataset)))
        self._gone: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        """For a worker that is being spawned; ``is_of`` is made there."""
        return {key: value for key, value in vars(self).items() if key != "is_of"}

    def fresh(self) -> list[Unreadable]:
        """What could not be read since the last call, in any of its processes."""
        found = [Unreadable.from_dict(one) for one in self.log.fresh()]
        # Workers of the next epoch are forked from here and need not try it again.
        self._gone |= {one.index for one in found if one.replaced}
        return found

    def batch(self, dataset: Any, indices: Iterable[Any], state: Sequence[Any]) -> list[Any]:
        """The samples of a batch that has failed, once more from the state it began with."""
        _put_back(state)
        # Another worker may have found out before.
        self._gone |= {one["index"] for one in self.log.everything() if one["replaced"]}
        return [self._sample(dataset, index) for index in indices]

    def _sample(self, dataset: Any, given: Any) -> Any:
        try:
            index = operator.index(given)
        except TypeError:  # not a number: nobody knows which other ones there are
            return dataset[given]
        if index in self._gone:
            return self._other(dataset, index)
        self.failed = True
        state, found = random_state(), None
        for pause in _PAUSES:
            time.sleep(pause)
            try:
                sample = dataset[index]
            except Exception as error:
                if not of_data(error):
                    raise
                found = error
                _put_back(state)
            else:
                if found is not None:
                    self.log.add(self._record(dataset, index, found).to_dict())
                return sample
        assert found is not None
        record = self._record(dataset, index, found).replace(replaced=True, most=self._most)
        if not self.log.add(record.to_dict(), self._most, "sample"):
            raise found
        self._gone.add(index)
        return self._other(dataset, index, found)

    @staticmethod
    def _other(dataset: Any, index: int, found: Exception | None = None) -> Any:
        """Another sample, always the same one for this index."""
        state = random_state()
        for attempt in range(_OTHERS):
            other = random.Random(f"{index}/{attempt}").randrange(len(dataset))
            try:
                return dataset[other]
            except Exception as error:
                if not of_data(error):
                    raise
                found = error
                _put_back(state)
        assert found is not None
        raise found

    def _record(self, dataset: Any, index: int, error: Exception) -> Unreadable:
        said, kind = self._describe(error), type(error)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        inner, number = innermost(dataset, index)
        return Unreadable(
            replaced=False,
            type=f"{module}{kind.__name__}",
            message=said.message,
            file=said.file,
            line=said.line,
            code=said.code,
            sample=number,
            index=index,
            path=file_of(inner, number),
        )


class ReplacingFetcher(_MapDatasetFetcher):
    """Makes batches as torch's own does, and once more where a sample cannot be read."""

    replacement: SampleReplacement
    everything: bool
    """Whether states of Python and numpy are kept too, which take as long as a short step: not on
    the training thread before something has failed there."""

    def fetch(self, possibly_batched_index: Any) -> Any:
        """The batch of these indices."""
        if self.everything or self.replacement.failed:
            state = random_state()
        else:
            state = (torch.random.default_generator.get_state(),)
        try:
            return super().fetch(possibly_batched_index)
        except Exception as error:
            if not of_data(error):
                raise
        samples = self.replacement.batch(self.dataset, possibly_batched_index, state)
        return self.collate_fn(samples)


class WorkerStart:
    """What a worker calls first that is no fork of this process: it brings along what is known.

    Args:
        own: what the script has its workers call.
        dataset: what they read.
        replacement: what is known of it.
        hook: has what torch makes to fetch batches pass through ``fetcher`` in its process.
    """

    def __init__(
        self, own: Any, dataset: Any, replacement: SampleReplacement, hook: Callable[[], None]
    ) -> None:
        self.own = own
        self._dataset, self._replacement, self._hook = dataset, replacement, hook

    def __call__(self, worker: int) -> None:
        """In the worker, before it makes its fetcher."""
        global _making
        if self.own is not None:
            self.own(worker)
        try:
            # Sent together, so that it is the object which the worker reads.
            self._replacement.is_of = weakref.ref(self._dataset)
            self._hook()
            _making = self._replacement
        except Exception:  # then samples are not replaced, and nothing else is changed
            _making = None


_making: SampleReplacement | None = None
"""Of the loader whose iterator is being made; in a worker, of its loader for good."""
_wrapped: Any = None
"""That loader, while its workers are to begin with ``WorkerStart``."""
_hook: Callable[[], None] | None = None
_known: weakref.WeakKeyDictionary[Any, SampleReplacement] = weakref.WeakKeyDictionary()


def offer(hook: Callable[[], None] | None) -> None:
    """Say how ``fetcher`` gets into a process that is no fork of this one: that is a patch."""
    global _hook
    _hook = hook


def loader_begins(
    loader: Any, describe: Describe, *, trains: bool = False
) -> SampleReplacement | None:
    """An iterator is about to be made; ``loader_began`` must follow.

    ``trains``: its loop is known to train, in whatever order.
    """
    global _making, _wrapped
    if _making is not None and _making.is_of() is getattr(loader, "dataset", None):
        return _making  # begun already by who knows more of it
    _making = None
    if not _trains(loader, known=trains):
        return None
    try:
        _making = _known.get(loader.dataset)
        if _making is None:
            _making = _known[loader.dataset] = SampleReplacement(loader.dataset, describe)
    except TypeError:  # a list, which is read already, or one that cannot be told from others
        _making = None
    if _making is not None and _hook is not None and _starts_anew(loader):
        own = loader.worker_init_fn
        if not isinstance(own, WorkerStart):
            loader.worker_init_fn = WorkerStart(own, loader.dataset, _making, _hook)
            _wrapped = loader
    return _making


def loader_began() -> None:
    """The iterator is there, its workers have been started."""
    global _making, _wrapped
    loader, _making, _wrapped = _wrapped, None, None
    if loader is not None and isinstance(loader.worker_init_fn, WorkerStart):
        loader.worker_init_fn = loader.worker_init_fn.own


def _starts_anew(loader: Any) -> bool:
    """Whether its workers are no forks, which have everything that this process has."""
    context = loader.multiprocessing_context or multiprocessing
    return loader.num_workers > 0 and context.get_start_method() != "fork"


def fetcher(made: Any) -> Any:
    """What torch has made to fetch batches, or one that replaces samples."""
    own_part = _making
    if (
        own_part is None
        or type(made) is not _MapDatasetFetcher
        or own_part.is_of() is not made.dataset
    ):
        return made
    if not made.auto_collation or not _one_by_one(made.dataset):
        return made
    new = ReplacingFetcher(made.dataset, made.auto_collation, made.collate_fn, made.drop_last)
    new.replacement, new.everything = own_part, get_worker_info() is not None
    return new


def _trains(loader: Any, *, known: bool) -> bool:
    """Whether what it loads is trained on: shuffled or known to be, and gradients are on."""
    if not isinstance(loader, DataLoader) or not torch.is_grad_enabled():
        return False
    if known:
        return length_of(loader.dataset) > 0
    sampler: Any = loader.sampler
    if isinstance(sampler, DistributedSampler):
        return bool(sampler.shuffle)
    return not isinstance(sampler, SequentialSampler) and length_of(loader.dataset) > 0


def _one_by_one(dataset: Any) -> bool:
    """Whether torch asks for samples singly, as it does behind a ``Subset``."""
    if type(dataset) is Subset:
        return _one_by_one(dataset.dataset)
    return not getattr(dataset, "__getitems__", None)


def random_state() -> tuple[Any, ...]:
    """The state of all generators that a dataset may draw from without asking."""
    of_torch = torch.random.default_generator.get_state()
    return of_torch, random.getstate(), np.random.get_state(legacy=False)


def _put_back(state: Sequence[Any]) -> None:
    torch.random.default_generator.set_state(state[0])
    if len(state) > 1:
        random.setstate(state[1])
        np.random.set_state(state[2])
