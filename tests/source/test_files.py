"""Files are parsed once; what cannot be read is empty and no failure."""

from __future__ import annotations

import subprocess
import sys

from holdfast.source.excerpts import excerpt_at
from holdfast.source.files import UNREADABLE, line_at, lines_of, nodes_of, parsed, tree_of


def test_a_file_is_parsed_once(tmp_path):
    path = tmp_path / "once.py"
    path.write_text("x = 1\n\ny = (2,\n     3)\n")
    file = str(path)
    assert tree_of(file) is tree_of(file) and nodes_of(file)[0] is tree_of(file)
    assert lines_of(file) == ["x = 1", "", "y = (2,", "     3)"]
    assert line_at(file, 3) == "y = (2,"
    assert line_at(file, 9) == ""


def test_what_cannot_be_read_is_no_failure(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def f(:\n")
    assert tree_of(str(path)) is UNREADABLE and lines_of(str(path)) == ["def f(:"]
    assert tree_of(str(tmp_path / "none.py")).body == []
    assert excerpt_at(str(tmp_path / "none.py"), 1).lines == ()
    assert parsed("x = (") is None and parsed("x = 1\0") is None
    assert parsed("") is not None


def test_an_excerpt_is_the_whole_statement_and_four_lines_around(tmp_path):
    path = tmp_path / "long.py"
    path.write_text(
        "\n".join(f"a{n} = 1" for n in range(1, 8)) + "\n    \nif b:\n    f(\n        1)\n"
    )
    found = excerpt_at(str(path), 11)
    assert found.code == "f(\n    1)" and found.start == 10
    assert [number for number, _ in found.lines] == [6, 7, 8, 9, 10, 11]
    assert excerpt_at(str(path), 9).code == "if b:", "of a block the line"


def test_the_room_needs_no_torch():
    code = (
        "import pkgutil, importlib, sys, holdfast.source as room\n"
        "for one in pkgutil.iter_modules(room.__path__, 'holdfast.source.'):\n"
        "    importlib.import_module(one.name)\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
