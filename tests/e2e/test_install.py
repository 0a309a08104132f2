"""What is built from this repository can be installed beside a torch that is there, and runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHERE = "import holdfast, sys; print(holdfast.__file__); print('torch' in sys.modules)"


def run(*arguments: object, paths: Path | None = None, cwd: Path = ROOT) -> list[str]:
    environment = dict(os.environ)
    if paths is not None:
        environment["PYTHONPATH"] = str(paths)
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel, and the archive of the sources."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("built")
    run("-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", folder)
    return sorted(folder.iterdir())


def test_the_wheel_and_the_sources_install_and_start(built: list[Path], tmp_path: Path):
    assert [path.suffix for path in built] == [".whl", ".gz"]
    for archive in built:
        target = tmp_path / archive.suffix[1:]
        # What it needs is there; `-e .` of a clone and the published form differ in this alone.
        run(
            *("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"),
            *("--no-deps", "--no-build-isolation", "--no-compile", "--target", target, archive),
        )
        where, loads_torch = run("-c", WHERE, paths=target, cwd=tmp_path)
        assert Path(where).is_relative_to(target) and loads_torch == "False"
        assert (target / "bin" / "holdfast").exists()
        explained = run("-m", "holdfast", "explain", "NUM001", paths=target, cwd=tmp_path)
        assert any("NUM001" in line for line in explained)
        assert (target / "holdfast" / "examples" / "dies_of_nan.py").exists()
