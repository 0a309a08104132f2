from __future__ import annotations

import subprocess
import sys

from holdfast.records.columns import COLUMNS, EARLIER


def test_an_earlier_name_leads_to_a_column_and_is_none_itself() -> None:
    assert set(EARLIER.values()) <= set(COLUMNS)
    assert not set(EARLIER) & set(COLUMNS)


def test_every_column_says_what_it_is() -> None:
    assert all(len(meaning.split()) > 2 for meaning in COLUMNS.values())


def test_the_contract_is_read_without_torch_and_numpy() -> None:
    code = (
        "import sys, holdfast.records, holdfast.records.columns; "
        "print(sorted({'torch', 'numpy'} & {name.partition('.')[0] for name in sys.modules}))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "[]\n"
