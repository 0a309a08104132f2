"""The import hook, tried on a stand-in for torch: quick, and it can be as broken as we like."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import holdfast
from holdfast.boot import RESUME_VARIABLE, RUN_VARIABLE, SITE, is_launcher, session


@pytest.fixture
def python(tmp_path: Path):
    """Runs a script beside a stand-in for torch, with the boot folder in front or without."""

    def run(
        text: str,
        *,
        torch: str = "value = 1\n",
        inside: bool = True,
        name: str = "script.py",
        **more: str,
    ):
        package = tmp_path / "torch"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text(textwrap.dedent(torch))
        (package / "nn.py").write_text("name = __name__\n")
        script = tmp_path / name
        script.write_text(textwrap.dedent(text))
        source = str(Path(holdfast.__file__).parents[1])
        path = [str(SITE), source] if inside else [source]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HOLDFAST"))}
        env["PYTHONPATH"] = os.pathsep.join(path)
        if inside:
            env[RUN_VARIABLE] = str(tmp_path / "run")
        env |= more
        return subprocess.run(
            [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=60
        )

    return run


SEEN = """
import sys, threading
{how}
torch = sys.modules["torch"]
print(torch.value, type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__)
print([type(f).__name__ for f in sys.meta_path if "Torch" in type(f).__name__])
print("holdfast.boot.session" in sys.modules)
"""


@pytest.mark.parametrize(
    "how",
    [
        "import torch",
        "import torch.nn",
        "from torch import nn",
        "__import__('torch')",
        "import importlib; importlib.import_module('torch.nn')",
        "t = threading.Thread(target=__import__, args=('torch',)); t.start(); t.join()",
        "import importlib.util; assert importlib.util.find_spec('torch'); import torch",
        "import importlib.util; assert importlib.util.find_spec('torch.nn'); import torch",
    ],
)
def test_holdfast_comes_in_with_torch_however_it_is_imported(python, how: str):
    """A stand-in cannot be guarded: that is said once, and the script runs on."""
    seen = python(SEEN.format(how=how))
    assert seen.returncode == 0, seen.stderr
    assert seen.stdout.splitlines() == ["1 SourceFileLoader SourceFileLoader", "[]", "True"]
    assert seen.stderr.startswith("holdfast: could not start (")
    assert seen.stderr.endswith("the script runs unguarded\n") and seen.stderr.count("\n") == 1


def test_looking_for_torch_is_not_importing_it(python):
    seen = python(
        """
        import importlib.util, sys
        spec = importlib.util.find_spec("torch")
        print(spec.name, spec.origin is not None, spec.submodule_search_locations)
        print("torch" in sys.modules, importlib.util.find_spec("no_such_module"))
        """
    )
    assert seen.returncode == 0 and seen.stderr == ""
    assert seen.stdout.splitlines()[1] == "False None"


def test_a_torch_that_fails_fails_as_it_would_without_us(python):
    script = """
        for _ in range(2):
            try:
                import torch
            except ImportError as error:
                print(type(error).__name__, error)
        import torch
    """
    broken = "raise ImportError('libcudart.so.12: cannot open shared object file')\n"
    plain, seen = (python(script, torch=broken, inside=inside) for inside in (False, True))
    assert (seen.returncode, seen.stdout) == (plain.returncode, plain.stdout)
    assert seen.returncode == 1
    # The loader that lets us in is one more frame; all others are there, and nothing else.
    ours = [line for line in seen.stderr.splitlines() if "hook.py" in line]
    assert len(ours) <= 1
    theirs = iter(seen.stderr.splitlines())
    assert all(line in theirs for line in plain.stderr.splitlines())


def test_no_torch_at_all(python):
    script = "import sys\nsys.path.pop(0)\nsys.modules['torch'] = None\nimport torch\n"
    plain, seen = (python(script, inside=inside) for inside in (False, True))
    assert (seen.returncode, seen.stderr) == (plain.returncode, plain.stderr)
    assert "ModuleNotFoundError" in seen.stderr


def test_without_a_run_the_boot_folder_does_nothing():
    """A process that inherited PYTHONPATH alone is none of ours."""
    script = "import os, sys\nprint('holdfast' in sys.modules, sys.meta_path[0])\n"
    environment = dict(os.environ, PYTHONPATH=str(SITE))
    environment.pop(RUN_VARIABLE, None)
    seen = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert seen.returncode == 0 and seen.stderr == ""
    assert seen.stdout.startswith("False ") and "Torch" not in seen.stdout


@pytest.mark.parametrize("name", ["torchrun", "accelerate", "deepspeed", "poetry"])
def test_a_launcher_is_not_entered(python, name: str):
    """The pythons that it starts are the ones that train; its own end is no crash of theirs."""
    script = """
        import sys, torch
        print("holdfast.boot.session" in sys.modules, len(sys.argv))
        raise SystemExit(3)
    """
    seen = python(script, name=name)
    assert (seen.returncode, seen.stdout, seen.stderr) == (3, "False 1\n", "")


@pytest.mark.parametrize(
    ("argv", "words", "answer"),
    [
        (["-m"], ["python", "-u", "-m", "torch.distributed.run"], True),
        (["-m", "a.py", "-m"], ["python", "-um", "deepspeed.launcher.launch", "a.py", "-m"], True),
        (["-m", "x"], ["python", "-maccelerate.commands.launch", "x"], True),
        (["-m", "torch.distributed.run"], ["python", "-m", "pkg", "torch.distributed.run"], False),
        (["-c"], ["python", "-c", "import torchrun"], False),
        (["torchrun.py"], ["python", "torchrun.py"], False),
        ([""], ["python"], False),
        ([], ["python"], False),
    ],
)
def test_what_is_a_launcher(argv: list[str], words: list[str], answer: bool):
    assert is_launcher(argv, words) is answer


def test_a_module_that_is_missing_is_named(monkeypatch, capsys):
    monkeypatch.delenv(RESUME_VARIABLE, raising=False)
    session._stay_out(ModuleNotFoundError("No module named 'psutil'", name="psutil"))
    reported = capsys.readouterr().err
    assert reported.startswith(
        f"holdfast: unguarded: {sys.executable} has no psutil; the command runs"
    )
    assert reported.count("\n") == 1


def test_a_run_to_be_resumed_is_not_begun_anew_without_a_guard(python):
    seen = python("import torch\nprint('began at step 0')", **{RESUME_VARIABLE: "step.safetensors"})
    assert (seen.returncode, seen.stdout) == (2, "")
    assert "cannot resume without a guard; the script was not run" in seen.stderr


def test_a_python_that_is_too_old_says_so_when_it_imports_torch(python):
    """No old python is at hand: this one says that it is one."""
    script = f"""
        import sys
        sys.version_info, sys.version = (3, 9, 18), "3.9.18 (main)"
        sys.modules["sitecustomize"] = sys
        __file__ = {str(Path(SITE) / "sitecustomize.py")!r}
        exec(open(__file__).read())
        {{}}
        print([type(f).__name__ for f in sys.meta_path if "Old" in type(f).__name__])
    """.replace("{{}}", "{}")
    quiet = python(script.replace("{}", "import json"), inside=False, HOLDFAST_RUN="run")
    assert (quiet.stderr, quiet.stdout) == ("", "['_TooOld']\n")
    seen = python(script.replace("{}", "import torch"), inside=False, HOLDFAST_RUN="run")
    assert seen.returncode == 0 and seen.stdout == "[]\n"
    assert "is Python 3.9.18, holdfast needs 3.11 or newer; the command runs" in seen.stderr
    assert seen.stderr.startswith("holdfast: unguarded: ") and seen.stderr.count("\n") == 1
