"""What loader workers can see: variables that their code reads, not names of attributes."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from holdfast.resume import worker_view

CODE = """
def attribute(row): return row.x
def variable(row): return x
def other(row): return settings.LEVEL
def itself(row):
    import __main__
    return __main__.x
"""


@pytest.mark.parametrize(
    ("name", "changes"),
    [("attribute", ""), ("variable", "x"), ("other", "LEVEL"), ("itself", "x")],
)
def test_what_the_code_of_workers_reads_is_compared(
    monkeypatch: pytest.MonkeyPatch, name: str, changes: str
) -> None:
    script, settings = ModuleType("__main__"), ModuleType("settings")
    vars(script).update(x=1, LEVEL=1, settings=settings)
    vars(settings)["LEVEL"] = 1
    exec(compile(CODE, "train.py", "exec"), vars(script))
    modules = {"__main__": script, "settings": settings}
    monkeypatch.setattr(worker_view, "user_modules", lambda: modules)
    monkeypatch.setattr(worker_view, "kind_of", lambda file: "user")
    iterator = SimpleNamespace(_dataset=[1, 2], _collate_fn=vars(script)[name])
    before = worker_view.seen_by_workers(iterator)
    vars(script)["x"] = vars(settings)["LEVEL"] = 2
    assert worker_view.changed(before, iterator) == changes
