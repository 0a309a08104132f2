"""Lines that are passed only for what a cache does not have yet."""

from __future__ import annotations

import pytest

from holdfast.source.caches import asked_before

IN_A_BLOCK = """
def __getitem__(self, i):
    if i not in self.cache:  # ASKS
        wave = decode(self.raw[i])  # SLOW
        self.cache[i] = wave
    return self.cache[i]
"""
RETURNS_EARLY = """
def load(path):
    if path in images:  # ASKS
        return images[path]
    image = read(path)  # SLOW
    images[path] = image
    return image
"""
GETS = """
def sample(self, i):
    found = self.kept.get(i)  # ASKS
    if found is None:
        found = make(i)  # SLOW
        self.kept[i] = found
    return found
"""
DECORATED = """
@functools.lru_cache(maxsize=None)  # ASKS
def load(path):
    return read(path)  # SLOW
"""
FILTERS = """
def sample(self, i):
    if i in self.rare:
        return self.rare[i]
    return make(self.table[i])  # SLOW
"""
WRITES = """
def sample(self, i):
    out = {}
    for name in self.names:
        out[name] = read(i, name)  # SLOW
    return out
"""


@pytest.mark.parametrize("source", [IN_A_BLOCK, RETURNS_EARLY, GETS, DECORATED, FILTERS, WRITES])
def test_where_a_cache_is_asked(tmp_path, source):
    file = tmp_path / "data.py"
    file.write_text(source)
    rows = source.splitlines()
    slow = next(n for n, row in enumerate(rows, 1) if "# SLOW" in row)
    asks = next((n for n, row in enumerate(rows, 1) if "# ASKS" in row), 0)
    outside = (str(tmp_path / "gone.py"), 3)
    found = asked_before([outside, (str(file), slow), outside])
    assert found == ((str(file), asks) if asks else None)
