"""The bench of the end-to-end tests: a script under plain python, and the same under holdfast."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pty
import re
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast.run import (
    LaneData,
    LaneReader,
    Rows,
    Run,
)
from holdfast.types import Event, Finding

from .warm_python import OF_WARM, SERVER, WarmPopen

HERE = Path(__file__).parent
CORPUS = "test_faults.py"
SRC = Path(holdfast.__file__).parents[1]

# Whoever starts the tests in the background of a shell has these ignored, and children inherit
# that; a handler is reset to the default when another program is started.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler)

# Generous: nothing is repeated, and a busy machine is no failure. What never ends still fails.
PATIENCE = 250.0
_ADDRESS = re.compile(rb"0x[0-9a-f]+")

# A few steps of an ordinary training, for scripts that are about something else.
TRAIN = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps, bad=()):
    for step in range(steps):
        x = torch.randn(8, 4)
        if step in bad:
            x[0, 0] = float("nan")
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
    return loss.item()
"""


@dataclass(frozen=True)
class Outcome:
    """What a process left behind: its status as ``Popen.returncode`` tells it, and its words."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def reported(self) -> str:
        return self.err.decode()

    @property
    def words(self) -> str:
        """Standard output however its lines were broken."""
        return " ".join(self.text.split())


class Record:
    """What holdfast wrote about a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = Run.open(path)
        self.lanes = self.run.lanes()

    def lane(self, name: str = "r0") -> LaneData:
        return LaneReader(self.run, name).read()

    def steps(self, lane: str = "r0") -> Rows:
        return LaneReader(self.run, lane).steps()

    def events(self, kind: str, lane: str = "r0") -> list[Event]:
        return [e for e in LaneReader(self.run, lane).events() if e.kind == kind]

    def findings(self, lane: str = "r0") -> list[Finding]:
        return LaneReader(self.run, lane).findings()

    def codes(self, lane: str = "r0") -> set[str]:
        return {finding.code for finding in self.findings(lane)}

    def skipped(self, lane: str = "r0") -> list[int]:
        rows = self.steps(lane)
        return [int(step) for step in rows["step"][rows["skipped"] > 0]]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours without what a launcher or a sandbox may have put in, and one thread per process."""
    ours = ("HOLDFAST", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "PYTHON", "TORCHELASTIC")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    env |= {"OMP_NUM_THREADS": "1", "TERM": "xterm", "TOKENIZERS_PARALLELISM": "false"}
    try:
        importlib.metadata.distribution("holdfast")
    except importlib.metadata.PackageNotFoundError:
        env["PYTHONPATH"] = str(SRC)
    return env | dict(extra or {})


class Bench:
    """One folder in which scripts are written and run, plain and guarded."""

    def __init__(self, folder: Path, *, warm: bool = True) -> None:
        self.folder = folder
        self.path = folder / "run"
        self._warm = warm
        self._started: list[subprocess.Popen[bytes]] = []

    def write(self, text: str, name: str = "script.py") -> str:
        """Write a script; returns its path relative to the folder it is run in."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return name

    def link(self, script: Path) -> str:
        """A script from elsewhere, which finds what lies beside it; returns as ``write`` does."""
        (self.folder / "script.py").symlink_to(script)
        return "script.py"

    @property
    def record(self) -> Record:
        return Record(self.path)

    def under_holdfast(self, command: Sequence[str], options: Sequence[str]) -> list[str]:
        return ["-m", "holdfast", "run", "--run-dir", str(self.path), *options, *command]

    def start(
        self,
        words: Sequence[str],
        *,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        **popen: Any,
    ) -> subprocess.Popen[bytes]:
        # Unbuffered, so that await_line takes no more than it returns.
        popen = {"stdin": subprocess.DEVNULL, "stdout": -1, "stderr": -1, "bufsize": 0} | popen
        command = [sys.executable, *flags, *words]
        exact = not self._warm or flags or cwd or popen.keys() - OF_WARM
        kind = subprocess.Popen if exact or not self._trains(words) else WarmPopen
        made = kind(command, cwd=cwd or self.folder, env=environment(env), **popen)
        process = cast("subprocess.Popen[bytes]", made)
        self._started.append(process)
        return process

    def _trains(self, words: Sequence[str]) -> bool:
        """Whether they start the script of this folder, and it imports torch."""
        known = (["-m", "holdfast"], ["-m", "torch.distributed.run"])
        if words[0] != "script.py" and list(words[:2]) not in known:
            return False
        script = self.folder / "script.py"
        return "script.py" in words and "import torch" in script.read_text()

    def start_guarded(
        self, *command: str, options: Sequence[str] = ("--quiet",), **given: Any
    ) -> subprocess.Popen[bytes]:
        return self.start(self.under_holdfast(command, options), **given)

    def end(self, process: subprocess.Popen[bytes], given: bytes | None = None) -> Outcome:
        out, err = process.communicate(given, timeout=PATIENCE)
        return Outcome(process.returncode, out or b"", err or b"")

    def plain(self, *command: str, given: bytes | None = None, **more: Any) -> Outcome:
        """``python *command``."""
        more |= {} if given is None else {"stdin": subprocess.PIPE}
        return self.end(self.start(command, **more), given)

    def guarded(
        self,
        *command: str,
        options: Sequence[str] = ("--quiet",),
        given: bytes | None = None,
        **more: Any,
    ) -> Outcome:
        """``holdfast run *command``."""
        more |= {} if given is None else {"stdin": subprocess.PIPE}
        return self.end(self.start(self.under_holdfast(command, options), **more), given)

    def both(self, *command: str, **given: Any) -> tuple[Outcome, Outcome]:
        """Side by side, plain and guarded; the script must not care about the other."""
        with ThreadPoolExecutor(2) as pool:
            options = {"options": given.pop("options")} if "options" in given else {}
            plain = pool.submit(self.plain, *command, **given)
            guarded = pool.submit(self.guarded, *command, **given, **options)
            return plain.result(), guarded.result()

    def same(self, *command: str, **given: Any) -> Outcome:
        """Both, which must not differ in status or in one byte of output; returns the guarded."""
        plain, guarded = self.both(*command, **given)
        assert guarded.code == plain.code, guarded
        assert guarded.out == plain.out
        # Addresses of objects and threads differ from run to run.
        assert _ADDRESS.sub(b"0x", guarded.err) == _ADDRESS.sub(b"0x", plain.err)
        return guarded

    def cli(self, *words: str, **given: Any) -> Outcome:
        """``holdfast *words``."""
        return self.end(self.start(["-m", "holdfast", *words], **given))

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def await_line(process: subprocess.Popen[bytes], word: bytes) -> bytes:
    """Read standard output up to and with the line that begins with ``word``."""
    assert process.stdout is not None
    seen = b""
    for line in process.stdout:
        seen += line
        if line.startswith(word):
            return seen
    pytest.fail(f"ended with {process.wait()} before {word!r}: {seen!r}")


def child_of(process: subprocess.Popen[bytes]) -> int:
    """The script below a ``holdfast run``."""
    pid = process.pid
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        # The signal_probe comes first and is one of us; a warm script has been there before.
        if len(children) == 2:
            return int(children[0 if isinstance(process, WarmPopen) and process.status else 1])
        time.sleep(0.02)
    raise TimeoutError(f"{pid} has no child")


class Terminal:
    """A pseudo terminal with a process of its own session on it."""

    def __init__(self, words: Sequence[str], cwd: Path) -> None:
        self.seen = b""
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(cwd)
            os.execve(sys.executable, [sys.executable, *words], environment())

    def type(self, keys: bytes) -> None:
        os.write(self._file, keys)

    def read_until(self, word: bytes) -> None:
        until = time.monotonic() + PATIENCE
        while word not in self.seen:
            assert time.monotonic() < until, self.seen
            if not self._read(1.0):
                pytest.fail(f"ended before {word!r}: {self.seen!r}")

    def end(self) -> int:
        """Read to the end; returns the exit code, negative for a signal."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self._read(1.0):
            pass
        os.close(self._file)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self, seconds: float) -> bool:
        if not select.select([self._file], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._file, 65536)
        except OSError:
            return False
        self.seen += data
        return bool(data)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


class Runner:
    """Runs many scripts side by side ahead of the tests that ask for them."""

    def __init__(self, root: Path, workers: int = 2) -> None:
        self._root = root
        self._pool = ThreadPoolExecutor(workers)
        self._futures: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()

    def submit(self, name: str, job: Any) -> None:
        with self._lock:
            self._futures.setdefault(name, self._pool.submit(job, self._root / name))

    def result(self, name: str) -> Any:
        return self._futures[name].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The corpus comes last: it is run in the background while everything else is tested."""
    items.sort(key=lambda item: item.path.name == CORPUS and item.path.parent == HERE)
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(PATIENCE + 50))


@pytest.fixture(scope="session", autouse=True)
def _end_of_warm() -> Iterator[None]:
    yield
    SERVER.close()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    made = Runner(tmp_path_factory.mktemp("corpus"))
    yield made
    made.close()


@pytest.fixture(scope="session", autouse=True)
def _start_corpus(request: pytest.FixtureRequest, corpus: Runner) -> None:
    """Only what this session asks for, in the order it will."""
    for item in request.session.items:
        start = getattr(getattr(item, "module", None), "start", None)
        if item.path.name == CORPUS and item.path.parent == HERE and start is not None:
            start(corpus, item.name.partition("[")[2].rstrip("]"))
