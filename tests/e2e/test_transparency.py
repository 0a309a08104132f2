"""A script behaves under ``holdfast run`` as under plain python, to the byte."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import TRAIN, Bench, environment


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """How python itself starts is what is tested here."""
    made = Bench(tmp_path, warm=False)
    yield made
    made.close()


def path_with(folder: str) -> str:
    return os.pathsep.join(filter(None, [folder, environment().get("PYTHONPATH")]))


def test_what_a_script_sees_of_itself(bench: Bench):
    """One script prints whatever could give us away; what may differ is left out by name."""
    (bench.folder / "own path").mkdir()
    script = bench.write(
        """
        import os, signal, sys, threading
        print(sys.argv, sys.orig_argv[1:], __name__, __file__, __spec__, __package__)
        print(sys.path)
        print(os.getcwd(), os.getppid() > 0, sys.flags, sys.warnoptions, sys.executable)
        finders = [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path]
        print([f for f in finders if f != "_TorchFinder"], sys.excepthook, sys.displayhook)
        print(threading.active_count(), len(sys.path_hooks), sys.gettrace(), sys.getprofile())
        print([signal.getsignal(s) for s in sorted(signal.valid_signals())])
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        print(sorted(globals()), sorted(vars(sys.modules["__main__"])))
        ours = {"HOLDFAST_RUN", "HOLDFAST_OWNER", "HOLDFAST_SETTINGS", "PYTHONPATH"}
        print(sorted((k, v) for k, v in os.environ.items() if k not in ours))
        print(os.listdir("/proc/self/fd"), os.getpgid(0) == os.getpgid(os.getppid()))
        print(sys.stdin.isatty(), sys.stdout.encoding, sys.stdout.line_buffering, sys.stderr.errors)
        """,
        "a folder/my script.py",
    )
    own = {"PYTHONPATH": path_with("own path")}
    args = ["--quiet", "-m", "x", "--run-dir", "", "a b", "--", "ü"]
    assert bench.same(script, *args, env=own).code == 0


def test_nothing_of_ours_but_holdfast_is_imported_before_torch(bench: Bench):
    """What is loaded already cannot be shadowed by a module of the user's any more."""
    script = bench.write("import sys; print(*sorted(sys.modules), sep='\\n')")
    plain, guarded = bench.both(script)
    # What is part of the interpreter comes first anyway.
    extra = set(guarded.lines) - set(plain.lines) - set(sys.builtin_module_names)
    assert {name for name in extra if name.partition(".")[0] != "holdfast"} <= {
        "sitecustomize",
        "__future__",
        "importlib",
        "importlib._bootstrap",
        "importlib._bootstrap_external",
        "importlib.machinery",
    }


def test_a_module_beside_the_script_comes_before_the_standard_library(bench: Bench):
    bench.write("mine = True", "random.py")
    script = bench.write("import random; print(hasattr(random, 'mine'))")
    assert bench.same(script).text == "True\n"


def test_a_sibling_is_imported_from_another_directory(bench: Bench):
    bench.write("def hello(): return 'sibling'", "far/away/sibling.py")
    script = bench.write(
        "import sibling; print(sibling.hello(), sibling.__file__)", "far/away/s.py"
    )
    assert "sibling" in bench.same(script).text
    absolute = str(bench.folder / script)
    shutil.rmtree(bench.path, ignore_errors=True)
    assert "sibling" in bench.same(absolute, cwd=Path("/")).text


def test_modules_and_packages_run_like_scripts(bench: Bench):
    bench.write("print('init')", "package/__init__.py")
    tell = "import sys; print(__name__, __package__, __spec__.name, sys.argv, sys.path[0])\n"
    bench.write(tell + "from . import part", "package/module.py")
    bench.write("print('part')", "package/part.py")
    bench.write(tell, "package/__main__.py")
    assert "part" in bench.same("-m", "package.module", "--x", "1").text
    assert "init" in bench.same("-m", "package").text
    assert bench.same("-m", "timeit", "-n1", "-r1", "1 / 0").code == 1
    bench.write("import sys; print(__name__, sys.argv, sys.path[0])", "folder/__main__.py")
    assert bench.same("folder", "x").code == 0


def test_a_users_own_sitecustomize_still_runs(bench: Bench):
    bench.write("import builtins; builtins.customized = __file__", "site/sitecustomize.py")
    script = bench.write(
        "import sys; print(customized, sys.modules['sitecustomize'].__file__, sys.path)"
    )
    own = {"PYTHONPATH": path_with(str(bench.folder / "site"))}
    assert "sitecustomize" in bench.same(script, env=own).text
    # One that fails is told about on standard error, with the user's frames, as python does.
    bench.write("raise ImportError('mine is broken')", "site/sitecustomize.py")
    script = bench.write("print('went on')", "other.py")
    plain, guarded = bench.both(script, env=own)
    assert guarded.text == plain.text == "went on\n"
    assert b"mine is broken" in plain.err and b"mine is broken" in guarded.err


def test_options_of_the_interpreter_hold_for_the_script(bench: Bench):
    script = bench.write(
        """
        import sys, warnings
        print(sys.flags, sys.warnoptions, sys._xoptions, sys.stdout.write_through)
        warnings.warn("told")
        """
    )
    flags = ["-u", "-O", "-B", "-W", "error::UserWarning", "-X", "faulthandler"]
    plain, guarded = bench.both(script, flags=flags)
    assert (guarded.code, guarded.out) == (plain.code, plain.out)
    assert plain.code == 1


def test_streams_to_the_byte(bench: Bench):
    script = bench.write(
        """
        import os, sys
        data = sys.stdin.buffer.read()
        sys.stdout.buffer.write(bytes(range(256)) + data[::-1])
        sys.stdout.flush()
        os.write(1, b"no newline at the end")
        sys.stderr.write("warned\\r\\nä")
        """
    )
    given = os.urandom(100_000)
    seen = bench.same(script, given=given)
    assert given[::-1] in seen.out and seen.err.endswith("ä".encode())


def test_an_open_file_of_the_caller_reaches_the_script(bench: Bench):
    script = bench.write("import os, sys; os.write(int(sys.argv[1]), b'through')")
    read, write = os.pipe()
    assert bench.guarded(script, str(write), pass_fds=(write,)).code == 0
    os.close(write)
    assert os.read(read, 100) == b"through"
    os.close(read)


ENDINGS = {
    "falls off the end": "print('done')",
    "exit 0": "import sys; sys.exit()",
    "exit 1": "import sys; sys.exit(1)",
    "exit 3": "import sys; sys.exit(3)",
    "exit 255": "import sys; sys.exit(255)",
    "exit 256": "import sys; sys.exit(256)",
    "exit -1": "import sys; sys.exit(-1)",
    "exit with text": "import sys; print('x'); sys.exit('the reason\\nin two lines')",
    "SystemExit of an object": "raise SystemExit([1, 2])",
    "exception": "def f():\n    g()\ndef g():\n    raise ValueError('two\\nlines')\nf()",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[1])\nraise OSError(2)",
    "_exit": "import os; os.write(1, b'x'); os._exit(7)",
    "abort": "import os, sys; print('x', flush=True); os.abort()",
    "faulthandler": "import faulthandler, os\nfaulthandler.enable()\nos.kill(os.getpid(), 11)",
    "killed by itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated by itself": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted by itself": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nos.wait()",
    "real time signal": "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 3)",
    "atexit": "import atexit; atexit.register(print, 'a'); atexit.register(print, 'b')\n1/0",
    "atexit that fails": "import atexit; atexit.register(lambda: 1 / 0); print('x')",
    "thread outlives main": (
        "import threading, time\n"
        "t = threading.Thread(target=lambda: (time.sleep(0.2), print('late')))\n"
        "t.start(); print('early')"
    ),
    "thread fails": "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start()",
    "warning": "import warnings; warnings.warn('careful'); print('x')",
    "recursion": "def f(): f()\ntry:\n    f()\nexcept RecursionError:\n    print('deep')",
}


# Those that end with an uncaught exception, and its line: a record is left behind.
# Of an error raised for another one the line of that.
CRASHES = {"exception": 4, "chained": 2, "own hook": 3, "atexit": 2}


# The others are part of `make prove`.
SAMPLED = (
    "falls off the end",
    "exit 3",
    "exit with text",
    "chained",
    "_exit",
    "killed by itself",
    "interrupted by itself",
    "atexit that fails",
)


@pytest.mark.parametrize(
    "ending",
    [pytest.param(e, marks=[] if e in SAMPLED else pytest.mark.slow, id=e) for e in ENDINGS],
)
def test_every_way_to_end(bench: Bench, ending: str):
    bench.same(bench.write(ENDINGS[ending]))
    if ending in CRASHES:
        (finding,) = bench.record.findings()
        assert (finding.code, finding.line) == ("RUN001", CRASHES[ending])
    else:
        assert not bench.path.exists(), "nothing was trained, nothing may be left behind"


AFTER_TRAINING = ("exception", "exit with text", "_exit", "abort")


@pytest.mark.parametrize(
    "ending",
    [AFTER_TRAINING[0], *(pytest.param(e, marks=pytest.mark.slow) for e in AFTER_TRAINING[1:])],
)
def test_every_way_to_end_after_training(bench: Bench, ending: str):
    late = "import atexit; atexit.register(print, 'late')\n"
    script = bench.write(TRAIN + "print(train(5), flush=True)\n" + late + ENDINGS[ending])
    seen = bench.same(script)
    assert len(bench.record.steps()) == 5
    report = bench.cli("report", str(bench.path))
    reported = {"exception": "ValueError: two at", "abort": "SIGABRT", "_exit": "exit code 7"}
    assert report.code == 0 and reported.get(ending, "") in report.words
    assert bench.record.run.meta["exit_code"] == seen.code


def test_torch_looks_untouched(bench: Bench):
    """What people inspect: loaders, specs, signatures, names, types, pickling, tracebacks."""
    script = bench.write(
        """
        import torch, inspect, pickle, sys, copy, traceback, warnings
        from torch.utils.data import DataLoader, TensorDataset
        torch.manual_seed(0)
        print(torch.__spec__.loader.__class__, torch.__loader__.__class__, torch.__file__)
        print([f for f in sys.meta_path if "oldfast" in repr(type(f))])
        print(inspect.signature(torch.autograd.backward), inspect.signature(torch.Tensor.backward))
        print(inspect.signature(torch.nn.utils.clip_grad_norm_), inspect.signature(torch.optim.SGD))
        print(inspect.signature(torch.amp.GradScaler.step), torch.autograd.backward.__module__)
        print(inspect.getsource(torch.nn.utils.clip_grad_norm_)[:80])
        print(torch.nn.utils.clip_grad_norm_ is torch.nn.utils.clip_grad.clip_grad_norm_)
        print(pickle.loads(pickle.dumps(torch.nn.utils.clip_grad_norm_)).__name__)
        loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2)
        iterator = iter(loader)
        print(type(iterator).__name__, type(iterator).__mro__[1].__name__, next(iterator))
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        print(sorted(vars(optimizer)), optimizer, sorted(optimizer.state_dict()["param_groups"][0]))
        print(torch.is_grad_enabled(), type(optimizer.step), torch.initial_seed())
        twin = copy.deepcopy(optimizer)
        print(type(pickle.loads(pickle.dumps(twin.state_dict()))), len(twin.state))
        print(torch.random.get_rng_state().sum().item())
        try:
            torch.autograd.backward(torch.ones(2))
        except RuntimeError as error:
            print(error)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=1), 1).step()
        print([str(w.message)[:60] for w in seen])

        # An error that torch raises below us keeps the frames that python would show.
        def names(error):
            return [f.name for f in traceback.extract_tb(error.__traceback__)]
        y = model(torch.ones(1, 3)).sum()
        y.backward()
        for act in (y.backward, lambda: optimizer.step(closure=lambda: 1 / 0),
                    lambda: torch.nn.utils.clip_grad_norm_([torch.ones(1)], "no")):
            try:
                act()
            except Exception as error:
                print(type(error).__name__, error.__context__, names(error)[0])
        """
    )
    seen = bench.same(script)
    assert seen.code == 0 and seen.text.count("Error") >= 3


@pytest.mark.slow
def test_a_script_that_only_imports_torch_leaves_no_trace(bench: Bench):
    script = bench.write(
        """
        import torch
        with torch.no_grad():
            print(torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape)
        optimizer = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())
        for batch in torch.utils.data.DataLoader(range(4)):
            print(batch)
        """
    )
    # Where runs go by default, and not quiet: there must be nothing to be quiet about.
    guarded = bench.start(["-m", "holdfast", "run", script])
    assert bench.plain(script) == bench.end(guarded)
    assert sorted(p.name for p in bench.folder.iterdir()) == ["script.py"]


def test_the_console_script_works(bench: Bench):
    script = bench.write("import sys; print(sys.argv); sys.exit(9)")
    entry = Path(sys.executable).parent / "holdfast"
    if not entry.exists():
        pytest.skip("holdfast is not installed here, only on the path")
    seen = bench.end(bench.start([str(entry), "run", script, "x"]))
    assert (seen.code, seen.out, seen.err) == (9, b"['script.py', 'x']\n", b"")
