from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast import faults
from holdfast.detectors import ALL
from holdfast.errors import UsageError
from holdfast.faults.catalogue import (
    choose,
    find,
    read_fault,
    read_faults,
)

FAULTS = read_faults(faults.ALL)


def test_every_fault_has_the_name_and_the_code_of_a_detector():
    assert {fault.name for fault in FAULTS} == set(faults.ALL)
    assert [fault.code for fault in FAULTS] == sorted({fault.code for fault in FAULTS})
    called = {detector.name: detector.code for detector in ALL}
    assert {fault.name: fault.code for fault in FAULTS}.items() <= called.items()


@pytest.mark.parametrize("detector", ALL, ids=lambda detector: detector.code)
def test_every_detector_has_a_fault(detector):
    assert detector.name in (*faults.ALL, *faults.ON_GPU)


def test_every_fault_is_true_to_its_script():
    for fault in FAULTS:
        assert fault.path.is_file() and fault.why and fault.first_step >= 0
        assert ("LINE_OF" in fault.path.read_text()) == bool(fault.lines), fault.name


def test_reading_them_loads_no_torch():
    code = "from holdfast import faults; from holdfast.faults import catalogue; import sys; "
    code += "catalogue.read_faults(faults.ALL); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.stdout == b"False\n"


def test_lines_are_found_by_their_text(tmp_path):
    (tmp_path / "grown.py").write_text(
        '"""It grows."""\nCODE = "MEM001"\nFIRST_STEP = 3\nLINE_OF = "kept.append("\n'
        "kept = []\nfor i in range(3):\n    kept.append(i)\n"
    )
    fault = read_fault(tmp_path / "grown.py")
    assert (fault.name, fault.code, fault.first_step) == ("grown", "MEM001", 3)
    assert fault.lines == (7,) and fault.why == "It grows."


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("stall", ["stall"]),
        ("num001", ["nonfinite_loss"]),
        ("OPT00", [f.name for f in FAULTS if f.code.startswith("OPT00")]),
        ("stall,NUM001", ["nonfinite_loss", "stall"]),
    ],
)
def test_choosing(only, names):
    assert [fault.name for fault in choose(FAULTS, only)] == names


def test_what_is_not_there_names_the_nearest():
    assert choose(FAULTS) == FAULTS
    with pytest.raises(UsageError, match="did you mean 'stall'"):
        choose(FAULTS, "stal")
    with pytest.raises(UsageError, match="see: holdfast faults list"):
        find(FAULTS, "xyzzy")
