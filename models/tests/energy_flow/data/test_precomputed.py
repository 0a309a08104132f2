"""Embeddings from files: every layout, and every bad row named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from holdfast import HoldfastError
from holdfast.training import write_tensors
from holdfast_models.energy_flow.data.precomputed import check_embeddings, read_precomputed

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
@pytest.mark.parametrize("names", [("input", "target"), ("question", "answer")])
def test_two_named_tensors_are_read(tmp_path: Path, kind: str, names: tuple[str, str]) -> None:
    path = tmp_path / f"set.{kind}"
    held = {f"{names[0]}_embeddings": X, f"{names[1]}_embeddings": Y}
    save_file(held, path) if kind == "safetensors" else torch.save(held, path)
    found = read_precomputed(path)
    assert torch.equal(found.x_NE, X) and torch.equal(found.y_NE, Y)


@pytest.mark.parametrize("zipped", [True, False])
def test_one_plain_tensor_is_both(tmp_path: Path, zipped: bool) -> None:
    torch.save(X, tmp_path / "set.pt", _use_new_zipfile_serialization=zipped)
    save_file({"anything": X}, tmp_path / "set.safetensors")
    for name in ("set.pt", "set.safetensors"):
        found = read_precomputed(tmp_path / name)
        assert torch.equal(found.x_NE, X) and torch.equal(found.y_NE, X)


def test_a_mapped_folder_is_read_where_it_lies(tmp_path: Path) -> None:
    write_tensors(tmp_path / "set", {"x": X, "y": Y})
    found = read_precomputed(tmp_path / "set")
    assert torch.equal(found.x_NE, X) and torch.equal(found.y_NE, Y)


class Evil:
    def __reduce__(self) -> Any:
        return print, ("executed",)


def test_a_file_that_would_run_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"input_embeddings": X, "target_embeddings": Evil()}, tmp_path / "set.pt")
    with pytest.raises(HoldfastError, match=r"set.pt: holds \S*print, not only tensors"):
        read_precomputed(tmp_path / "set.pt")
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["set.pt", "set.safetensors"])
def test_what_is_no_file_of_tensors_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(HoldfastError, match="No such file or directory; give"):
        read_precomputed(tmp_path / name)
    (tmp_path / name).write_bytes(b"PKnothing")
    with pytest.raises(HoldfastError, match=name):
        read_precomputed(tmp_path / name)


def test_a_missing_safetensors_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"x": X}, tmp_path / "set.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(HoldfastError, match=r"safetensors.*holdfast-models\[text\]"):
        read_precomputed(tmp_path / "set.safetensors")


def test_other_names_and_unequal_shapes_are_refused(tmp_path: Path) -> None:
    torch.save({"a": X, "b": Y}, tmp_path / "names.pt")
    with pytest.raises(HoldfastError, match=r"holds a, b; it has to hold input_embeddings and"):
        read_precomputed(tmp_path / "names.pt")
    torch.save({"x": X, "y": Y[:3]}, tmp_path / "rows.pt")
    with pytest.raises(HoldfastError, match=r"inputs \[6, 4\] and targets \[3, 4\]"):
        read_precomputed(tmp_path / "rows.pt")


def test_bad_rows_are_named() -> None:
    bad = X.repeat(1000, 1)
    bad[3, 1], bad[4500], bad[5000, 0], bad[5999] = float("nan"), 0.001, float("inf"), 300.0
    with pytest.raises(HoldfastError, match=r"set: 4 of 6000 rows .* 3, 4500, 5000, 5999; remove"):
        check_embeddings(bad, "set")
    with pytest.raises(HoldfastError, match=r"0, 1, 2, 3, 4, 5, 6, 7 and 5992 more"):
        check_embeddings(bad * 0, "set")
    check_embeddings(X, "set")


@pytest.mark.parametrize("wrong", [X[0], X[None], X.long(), X[:0], torch.zeros(3, 0)])
def test_what_is_no_table_of_numbers_is_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(HoldfastError, match=r"set: .* of shape"):
        check_embeddings(wrong, "set")


def test_rows_of_length_one_are_known_also_after_rounding() -> None:
    unit = functional.normalize(X, dim=1)
    assert check_embeddings(unit.half(), "set").unit and not check_embeddings(X, "set").unit
    assert check_embeddings(2 * unit, "set") == pytest.approx((2.0, 2.0))
