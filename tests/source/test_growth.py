"""Which statements let a name grow, and which keep it small."""

from __future__ import annotations

import pytest

from holdfast.source.growth import habits, refers_to_itself


@pytest.mark.parametrize(
    ("source", "grows", "shrinks", "tested"),
    [
        ("for i in y:\n    x.append(i)", [2], False, False),
        ("for i in y:\n    x = x + [i]", [2], False, False),
        ("for i in y:\n    x[i] = 1", [2], False, False),
        ("for i in y:\n    x.append(i)\n    x.pop(0)", [2], True, False),
        ("for e in z:\n    x = []\n    for i in y:\n        x.append(i)", [4], True, False),
        ("def f():\n    x = []\n    for i in y:\n        x.append(i)", [4], False, False),
        ("for i in y:\n    if i not in x:\n        x[i] = 1", [3], False, True),
        ("for i in y:\n    if len(x) < 9:\n        x.append(i)", [3], False, False),
        ("for i in y:\n    x = x[-9:]", [2], True, False),
        ("def f():\n    y = [i for i in z if i not in x]\n    x[1] = y", [3], False, True),
        ("x.append(1)", [], False, False),
    ],
)
def test_what_the_source_says(tmp_path, source, grows, shrinks, tested):
    file = tmp_path / "a.py"
    file.write_text(source)
    found = habits(str(file), "x")
    assert (found.grows, found.shrinks, found.tested) == (grows, shrinks, tested)


@pytest.mark.parametrize(
    ("use", "read"),
    [
        ("batch = random.sample(x, 32)", True),
        ("recent = x[-100:]", True),
        ("mean = sum(x) / len(x)", False),
        ("print(x[-1])", False),
    ],
)
def test_whether_a_loop_goes_on_with_what_grows(tmp_path, use, read):
    file = tmp_path / "a.py"
    file.write_text(f"x = []\nfor step in range(9):\n    x.append(step)\n    {use}\n")
    assert habits(str(file), "x").read is read


def test_statements_about_themselves(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("a = 1\nfor i in b:\n    a = a + i\n    c = i\n")
    assert [refers_to_itself(str(file), line, "a") for line in (1, 3, 4)] == [False, True, False]


@pytest.mark.parametrize(
    ("source", "capped"),
    [
        ("for i in y:\n    if len(x) < 9:\n        x.append(i)", True),
        ("for i in y:\n    if 9 > len(x):\n        x.append(i)", True),
        ("for i in y:\n    if len(x) >= 9:\n        z()\n    else:\n        x.append(i)", True),
        ("for i in y:\n    x.append(i)\n    if len(x) > 9:\n        print(x[-9:])", False),
        ("for i in y:\n    if len(x) > 9:\n        x.append(i)", False),
        ("for i in y:\n    if len(x) >= 9:\n        continue\n    x.append(i)", True),
        ("for i in y:\n    if len(x) < 9:\n        x[i] = 1", True),
        ("for i in y:\n    if used + i <= 9:\n        x[i] = 1\n        used += i", True),
        ("for i in y:\n    if used + i <= 9:\n        x[i] = 1\n        other += i", False),
        (
            "def f():\n    x.append(1)\n    if len(x) < 2:\n        return 0\n    return x[-1]",
            False,
        ),
    ],
)
def test_what_grows_only_while_it_is_short(tmp_path, source, capped):
    file = tmp_path / "a.py"
    file.write_text(source)
    assert habits(str(file), "x").capped == capped
