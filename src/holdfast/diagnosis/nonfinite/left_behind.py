"""What a skipped step leaves behind although nothing of the optimizer moved, by name and line.

Numbers that a forward pass counts on its module, and averages of the weights that the script
updates after each step: both are the script's, and have no "as before".
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from types import FrameType

from torch import nn
from torch.optim.swa_utils import AveragedModel

from ...source.carried import counted_by_function
from ...source.contents import calls_of
from ...source.frames import user_frames
from ...source.ownership import kind_of
from ...source.paths import from_here


def left_behind(frame: FrameType | None, modules: Iterable[nn.Module]) -> Iterator[str]:
    """One sentence for each; ``modules`` are all that may belong to the training."""
    said = set[str]()
    for module in modules:
        for text in _of_module(module):
            if text not in said:
                said.add(text)
                yield text
    if any(isinstance(module, AveragedModel) for module in modules):
        for file in dict.fromkeys(at.f_code.co_filename for at in user_frames(frame)):
            for line in calls_of(file, "update_parameters"):
                at = f"{from_here(file)}:{line}"
                yield f"AveragedModel.update_parameters ({at}) counts skipped steps, too"


def _of_module(module: nn.Module) -> Iterator[str]:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if code is None or kind_of(code.co_filename) != "user":
        return
    for name, line in counted_by_function(code.co_filename, code.co_firstlineno).items():
        value = vars(module).get(name.partition(".")[2])
        if type(value) in (int, float):
            at = f"{from_here(code.co_filename)}:{line}"
            yield f"{name} of {type(module).__name__} ({at}) counts skipped steps, too"
