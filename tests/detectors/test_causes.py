"""A cause needs evidence of the world it names: cases where the words match and the world does not.

Each case is a recorded exception; the same words with the evidence stand beside it.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.detectors._crashes import explain
from holdfast.detectors._crashes import root as root_of
from holdfast.detectors.peers import peer_is_gone
from holdfast.records.crash import RaisedException

GLOO = "[gloo/pair.cc:553] Connection closed by peer [::1]:3"
RESET = {"type": "ConnectionResetError", "message": "[Errno 104] Connection reset by peer"}
PIPE = {"type": "BrokenPipeError", "message": "[Errno 32] Broken pipe"}
KILLED = "DataLoader worker (pid 12) is killed by signal: Killed. "
IN_USE = {"type": "OSError", "message": "[Errno 98] Address already in use"}
MEMORY = {"limit": "machine", "bytes": 64 << 30, "used": 16 << 30}
NO_SPACE = {"type": "OSError", "message": "[Errno 28] No space left on device: 'out/a.pt'"}
WRITING = {"type": "RuntimeError", "message": "unexpected pos 64 vs 0"}
UNPACKED = {"type": "ValueError", "message": "too many values to unpack (expected 2)",
            "code": "for x, y in pairs:"}  # fmt: skip
BROADCAST: dict[str, Any] = {
    "type": "RuntimeError",
    "message": "The size of tensor a (7) must match the size of tensor b (32) at non-singleton "
    "dimension 0",
    "operands": [{"name": "x", "shape": [7, 4]}, {"name": "noise", "shape": [32, 4]}],
}
ROWS = {
    "type": "RuntimeError",
    "message": "mat1 and mat2 shapes cannot be multiplied (64x540 and 864x64)",
    "module": {"name": "fc1", "module": "Linear", "weights": {"weight": [64, 864]}, "changed": 141},
    "steps": 140,
}
BATCHES = {"type": "ValueError", "message":
           "Expected input batch_size (16) to match target batch_size (8)."}  # fmt: skip
MISSING = {"type": "FileNotFoundError", "message": "[Errno 2] No such file or directory: 'git'"}

NO_GRAD: dict[str, Any] = {
    "type": "AttributeError",
    "message": "'NoneType' object has no attribute 'norm'",
    "code": "total += p.grad.norm().item() ** 2",
    "steps": 80,
    "operands": [{"name": "p", "shape": [1, 16], "grad": True}],
}

# The cause, a case with its evidence, and cases that say the same words in another world.
CAUSES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "another rank is gone": (
        {"type": "RuntimeError", "message": GLOO, "world": 2},
        [
            {"type": "RuntimeError", "message": GLOO, "world": 1},
            {"type": "RuntimeError", "message": "Broken pipe"},
            RESET | {"world": 1},
            RESET | {"world": 2},  # python's own socket, as of a tracker or a loader worker
            PIPE | {"world": 4, "output_gone": "stdout"},
        ],
    ),
    "the reader of the output went away": (
        PIPE | {"output_gone": "stdout"},
        [PIPE, RESET | {"output_gone": "stdout"}],
    ),
    "a connection was lost": (RESET, [RESET | {"dead_workers": [[1, 77, -9]]}]),
    "was killed (SIGKILL)": (
        RESET | {"dead_workers": [[1, 77, -9]]},
        [
            RESET,
            {"type": "RuntimeError", "message": KILLED.replace("Killed", "Bus error")},
            {"type": "KeyError", "message": "'a'", "process": "DataLoader worker process 1",
             "dead_workers": [[0, 77, -9]]},
        ],
    ),
    "by the OOM killer": (
        {"type": "RuntimeError", "message": KILLED, "oom_kills": 1},
        [
            {"type": "RuntimeError", "message": KILLED, "oom_kills": 0},
            {"type": "RuntimeError", "message": KILLED, "oom_kills": None},
            {"type": "RuntimeError", "message": KILLED, "machine_oom_kills": 1},
            {"type": "RuntimeError", "message": KILLED.replace("Killed", "Terminated"),
             "oom_kills": 1},
        ],
    ),
    "left with exit code 3": (
        {"type": "RuntimeError", "dead_workers": [[0, 77, 3]],
         "message": "DataLoader worker (pid(s) 77) exited unexpectedly"},
        [{"type": "RuntimeError", "message": "DataLoader worker (pid(s) 77) exited unexpectedly"}],
    ),
    "MASTER_PORT": (
        IN_USE | {"type": "DistNetworkError"},
        [IN_USE, IN_USE | {"library": "python3.11/socketserver.py:456"}],
    ),
    "another rank has mostly failed": (
        {"type": "DistBackendError", "message": "NCCL error: unhandled", "world": 2},
        [{"type": "RuntimeError", "message": "NCCL Error 1: unhandled cuda error", "world": 1}],
    ),
    "holds NaN": (
        {"type": "ValueError", "message": "Expected parameter loc (Tensor) of distribution Normal "
         "to satisfy the constraint Real(), but found invalid values: tensor([nan])"},
        [
            {"type": "RuntimeError", "message":
             "probability tensor contains either `inf`, `nan` or element < 0"},
            {"type": "ValueError", "message": "Expected parameter scale (nan-safe) of distribution "
             "Normal, but found invalid values: tensor([-1.])"},
        ],
    ),
    "input() has nothing to read": (
        {"type": "EOFError", "message": "EOF when reading a line", "code": "name = input('? ')"},
        [{"type": "EOFError", "message": "Ran out of input", "code": "x = pickle.load(f)"}],
    ),
    "that cannot be decoded": (
        {"type": "EOFError", "message": "Ran out of input", "code": "x = pickle.load(f)"},
        [{"type": "EOFError", "message": "", "library": "multiprocessing/connection.py:383"},
         {"type": "EOFError", "message": "EOF when reading a line", "code": "input()"}],
    ),
    "may not be read or written": (
        {"type": "PermissionError", "message": "[Errno 13] Permission denied: '/data/a.pt'"},
        [{"type": "PermissionError", "message": "[Errno 1] Operation not permitted"}],
    ),
    "the disk is full": (
        WRITING | {"disk": {"folder": "out", "free": 4096}},
        [WRITING, WRITING | {"disk": {"folder": "out", "free": 9 << 30, "files": 7}},
         NO_SPACE | {"disk": {"folder": "out", "free": 9 << 30, "files": 7}}],
    ),
    "a quota": (
        NO_SPACE | {"disk": {"folder": "out", "free": 9 << 30, "files": 7}},
        [NO_SPACE, NO_SPACE | {"disk": {"folder": "out", "free": 4096}}],
    ),
    "download": (
        {"type": "ConnectionError", "message": "HTTPSConnectionPool: Max retries exceeded"},
        [{"type": "ConnectionError", "message": "the socket of the simulator is closed"}, RESET],
    ),
    "the loader gives batches": (
        UNPACKED | {"over_loader": True},
        [UNPACKED, UNPACKED | {"operands": [{"name": "pairs", "type": "list", "repr": "[1]"}]}],
    ),
    "this batch has 7 samples": (
        BROADCAST | {"indices": [*range(7)]},
        [BROADCAST, BROADCAST | {"indices": [*range(32)]}],
    ),
    "has 40 samples of 864 values each, the input 64 rows": (
        ROWS | {"indices": [*range(40)]},
        [ROWS, ROWS | {"indices": [*range(64)]}, ROWS | {"indices": [*range(41)]}],
    ),
    "the batch changed its size on the way": (
        BATCHES | {"reshapes": [{"file": "a.py", "line": 4, "code": "x = x.view(-1, 4)"}]},
        [BATCHES],
    ),
    "p.grad is None": (
        NO_GRAD,
        [NO_GRAD | {"steps": 0}, NO_GRAD | {"code": "n = model.find(p.grad).norm()"}],
    ),
    "what saves it has run": (
        MISSING | {"message": "[Errno 2] No such file or directory: 'out/best.pt'"},
        [MISSING, MISSING | {"message": "[Errno 2] No such file or directory: 'a.csv'"}],
    ),
    "os.makedirs": (
        MISSING | {"missing_folder": "data"},
        [MISSING | {"library": "subprocess.py:1955"}],
    ),
}  # fmt: skip


def reported(data: dict[str, Any]) -> str:
    cause = explain(root_of(RaisedException.from_dict(data)))
    return f"{cause.headline}: {cause.advice}"


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_has_evidence_of_its_world(cause: str):
    with_evidence, elsewhere = CAUSES[cause]
    assert cause in reported(with_evidence)
    for case in elsewhere:
        assert cause not in reported(case), case


def test_a_group_of_one_has_no_other_rank():
    assert peer_is_gone(RaisedException(message=GLOO, world=2))
    assert not peer_is_gone(RaisedException(message=GLOO, world=1))
    assert not peer_is_gone(RaisedException(message=GLOO))
    said = "process 1 terminated"
    assert peer_is_gone(RaisedException(type="ProcessExitedException", message=said))


def test_who_killed_a_worker_is_said_to_be_unknown_where_nothing_counted_it():
    data = {"type": "RuntimeError", "message": KILLED, "oom_kills": 0, "memory": MEMORY}
    assert "who sent the signal is not known; no kill for lack of memory was counted" in reported(
        data
    )
    assert "16.0 GiB of 64.0 GiB were in use afterwards" in reported(data)
    assert "perhaps for lack of memory" in reported(data | {"machine_oom_kills": 2})


BEHIND = {"type": "RuntimeError", "file": "a.py", "line": 5,
          "message": "mat1 and mat2 shapes cannot be multiplied (8x24 and 20x1)"}  # fmt: skip


def test_an_error_that_is_raised_from_another_is_explained_by_it():
    outer = {"type": "ValueError", "message": "bad batch", "behind": BEHIND, "raised_from": True}
    assert "8x24 and 20x1" in reported(outer)
    raised = RaisedException.from_dict(outer)
    assert root_of(raised) is raised.behind
    # Inside of ``except`` without ``from``: what happened there is explained first.
    other = {"type": "NameError", "message": "name 'x' is not defined", "behind": BEHIND}
    assert "no variable x" in reported(other)
    assert "8x24" in reported(other | {"raised_from": True})
    odd = raised.replace(behind=RaisedException(type="OddError", message="odd"))
    assert root_of(odd) is odd
