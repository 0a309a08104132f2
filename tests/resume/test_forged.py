"""A forged checkpoint decides values and nothing else: no attack here runs a line of code."""

from __future__ import annotations

import argparse
import builtins
import functools
import gc
import os
import re
import subprocess
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from holdfast.checkpoint import packing
from holdfast.checkpoint.file import file_name, load, save
from holdfast.checkpoint.record import decode_record, encode_record
from holdfast.checkpoint.tree import ROOT, flatten, unflatten
from holdfast.errors import CheckpointError
from holdfast.resume.refusal import RefusedError
from holdfast.resume.values.admitted import class_named
from holdfast.resume.values.nodes import MISSING
from holdfast.resume.values.restoring import ValueRestoring

from . import forging
from .conftest import Bench

HERE = f"{forging.__name__}:"


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    loaded, calls = set(sys.modules), forging.CALLS
    calls.clear()
    yield
    gc.collect()
    assert calls == []
    # torch loads some of its own when a tensor is moved; a file has named none of these.
    assert not {"antigravity", "this", "turtledemo"} & (set(sys.modules) - loaded)


def put(node: Any, live: Any = MISSING, path: str = "0/v") -> Any:
    return ValueRestoring().value(live, node, path)


def refused(node: Any, live: Any = MISSING) -> None:
    with pytest.raises(RefusedError):
        put(node, live)


def node(kind: str, **about: Any) -> dict[str, Any]:
    return {"#": kind, **about}


def made(name: str, **attributes: Any) -> dict[str, Any]:
    return node("object", c=name, a=[[key, value] for key, value in attributes.items()])


CODE = node("tuple", c="types:CodeType", v=[0] * 6 + [b"\x97\x00d\x00S\x00", [None], []])


# ---------------------------------------------------------------------- classes that a file names


@pytest.mark.parametrize(
    "name",
    [
        *("types:FunctionType", "types:CodeType", "types:MethodType", "types:GenericAlias"),
        *("builtins:eval", "builtins:exec", "builtins:type", "os:system", "subprocess:Popen"),
        *("argparse:FileType", "argparse:ArgumentParser", "functools:partial", "torch:load"),
        *(f"{HERE}FunctionType", f"{HERE}os.system", f"{HERE}namespace", f"{HERE}trap"),
        *(f"{HERE}os._wrap_close", f"{HERE}Trapped.method", f"{HERE}Trapped.__class__"),
        *("antigravity:x", "this:s", "turtledemo:x", ":", "", "a.b.c:d.e.f"),
    ],
)
def test_only_classes_of_the_script_are_found_by_a_name(name: str):
    for kind in ("tuple", "object", "enum"):
        refused(node(kind, c=name, v=[CODE, {}], a=[]))


def test_the_forged_function_of_the_audit_is_refused():
    function = node("tuple", c="types:FunctionType", v=[CODE, node("dict", t="dict", v=[])])
    net = forging.Net()
    name = f"{HERE}Net"
    refused(node("module", c=name, a=[["forward", function]], p=[], b=[], k=[]), net)
    assert "forward" not in vars(net)


@pytest.mark.parametrize("name", [None, 3, [], ["os", "system"], {"a": 1}, b"os:system"])
def test_a_class_is_named_by_a_text(name: Any):
    refused(node("object", c=name, a=[]))


def test_classes_of_the_short_list_and_of_the_script_are_made():
    assert put(made("argparse:Namespace", lr=0.1)) == argparse.Namespace(lr=0.1)
    assert put(made("types:SimpleNamespace", lr=0.1)) == types.SimpleNamespace(lr=0.1)
    assert put(node("tuple", c=f"{HERE}Fields", v=[1, 2])) == forging.Fields(1, 2)
    assert put(node("enum", c=f"{HERE}Colour", v="RED")) is forging.Colour.RED


def test_no_class_of_python_or_torch_is_let_in():
    """Every class of what is loaded after torch, and every one that the library's source names."""
    names = {
        f"{module}:{name}"
        for module, held in list(sys.modules.items())
        if type(held) is types.ModuleType
        for name, one in list(vars(held).items())
        if issubclass(type(one), type)
        and not str(getattr(held, "__file__", "")).startswith(ROOT_OF_TESTS)
    }
    library = Path(sysconfig.get_path("stdlib"))
    for file in library.rglob("*.py"):
        parts = file.relative_to(library).with_suffix("").parts
        if parts[0] in ("site-packages", "dist-packages", "test"):
            continue
        module = ".".join(parts).removesuffix(".__init__")
        text = file.read_text(errors="ignore")
        names |= {f"{module}:{found}" for found in re.findall(r"^class (\w+)", text, re.M)}
    names |= {f"builtins:{name}" for name in vars(builtins)}
    assert len(names) > 10_000
    before, admitted = set(sys.modules), set[str]()
    for name in names:
        try:
            class_named(name, "0/v")
            admitted.add(name)
        except RefusedError:
            continue
    assert admitted == {"argparse:Namespace", "types:SimpleNamespace"}
    assert set(sys.modules) == before


ROOT_OF_TESTS = str(Path(__file__).parents[1])


@pytest.mark.parametrize(
    "kind", ["tuple", "object", "enum", "module", "class", "parts", "function"]
)
def test_no_kind_of_node_makes_a_class_of_python_or_torch(kind: str):
    for home in (types, argparse, functools, subprocess, builtins, torch, nn, os):
        for name, one in list(vars(home).items()):
            if isinstance(one, type) and f"{home.__name__}:{name}" not in (
                *("argparse:Namespace", "types:SimpleNamespace"),
            ):
                refused(node(kind, c=f"{home.__name__}:{name}", v=[], a=[], p=[], b=[], k=[]))


# ---------------------------------------------------------------------- objects of the script


def test_no_method_of_a_class_runs_when_an_object_of_it_is_made():
    found = put(made(f"{HERE}Trapped", x=1))
    assert vars(found) == {"x": 1}


@pytest.mark.parametrize(
    "name", ["reported", "method", "__class__", "__dict__", "__init__", 3, None]
)
def test_what_a_class_means_as_its_behaviour_is_not_set(name: Any):
    refused(node("object", c=f"{HERE}Trapped", a=[[name, 1]]))


def test_an_object_that_cleans_up_after_itself_is_not_made():
    refused(made(f"{HERE}Deleted", path="/"))


def test_a_named_tuple_is_made_without_its_constructor():
    found = put(node("tuple", c=f"{HERE}Checked", v=[1, 2]))
    assert type(found) is forging.Checked
    assert found.x == 1
    refused(node("tuple", c=f"{HERE}Checked", v=[1]))
    refused(node("tuple", c=f"{HERE}Trapped", v=[1]))


def test_a_member_is_found_by_its_name_alone():
    for name in ("BLUE", "_missing_", "mro", 1, None, "__class__"):
        refused(node("enum", c=f"{HERE}Colour", v=name))
    refused(node("enum", c=f"{HERE}Trapped", v="RED"))


@pytest.mark.parametrize("kind", ["set", "frozenset"])
def test_a_method_that_hashes_is_not_asked(kind: str):
    refused(node(kind, v=[made(f"{HERE}Hashed")]))
    refused(node(kind, v=[node("tuple", v=[made(f"{HERE}Hashed")])]))
    refused(node("dict", t="dict", v=[[made(f"{HERE}Hashed"), 1]]))


def test_items_are_put_past_the_methods_of_a_class():
    items, pairs = forging.Items(), forging.Pairs()
    put(node("object", c=f"{HERE}Items", a=[], i=node("list", v=[1, 2])), items)
    put(node("object", c=f"{HERE}Pairs", a=[], i=node("dict", t="dict", v=[["a", 1]])), pairs)
    assert (list.__len__(items), dict(pairs)) == (2, {"a": 1})


# ---------------------------------------------------------------------- what is live


@pytest.mark.parametrize(
    "live",
    [
        *(os, torch, os.system, print, len, torch.relu, nn.Module, int, forging.trap, Path),
        *(functools.partial(print), [].append, nn.Linear(1, 1), np.add, open),
    ],
    ids=lambda one: f"{type(one).__name__}",
)
def test_code_is_neither_replaced_nor_filled(live: Any):
    kind = f"{type(live).__module__}:{type(live).__qualname__}"
    before = dict(vars(live)) if hasattr(live, "__dict__") else {}
    attacks = [
        *(made(kind, system=1, __code__=1), made(kind, forward=1)),
        node("class", a=[["forward", 1], ["__init__", 1], ["system", "x"]]),
        node(
            "function", a=[["attribute __code__", 1], ["attribute __globals__", 1], ["cell x", 1]]
        ),
        node("parts", c="method", a=[["system", node("ref", c="x")], ["__globals__", 1]]),
        node("scaler", v=[["a", 1]]),
        node("generator", v=b"1"),
        node("random", v=[1]),
        node("optimizer", v=[], a=[["step", 1]]),
        node("made", c="Tensor", h=1),
        node("large", c=type(live).__name__, n=0, h=0),
    ]
    for attack in attacks:
        refused(attack, live)
    if not isinstance(live, nn.Module):  # a module of the script may hold another afterwards
        for value in (1, "text", node("list", v=[]), node("path", v="/")):
            refused(value, live)
    assert before == (dict(vars(live)) if hasattr(live, "__dict__") else {})


def test_code_does_not_get_another_name():
    """``same`` over a part of a module would have put ``os.system`` under any name."""
    again = ValueRestoring()
    again.value(os, node("ref", c="module"), "m/os")
    again.value(forging.trap, node("ref", c="function"), "m/trap")
    for path in ("m/os", "m/trap"):
        with pytest.raises(RefusedError):
            again.value(MISSING, node("same", p=path), "m/print")
    with pytest.raises(RefusedError):
        again.value(os, node("parts", c="x", a=[["system", node("ref", c="x")]]), "m/os")
    assert again.value(os, node("same", p="m/os"), "m/os") is os


@pytest.mark.parametrize(
    "name",
    [
        *("forward", "__class__", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks"),
        *("_parameters", "_modules", "_buffers", "_compiled_call_impl", "state_dict", "__call__"),
    ],
)
def test_a_module_keeps_its_behaviour(name: str):
    net = forging.Net()
    before = {key: vars(net).get(key) for key in (*vars(net), "forward", "__class__")}
    about: dict[str, Any] = {"c": f"{HERE}Net", "p": [], "b": [], "k": []}
    for value in (1, made("types:SimpleNamespace"), node("dict", t="dict", v=[[1, 2]])):
        refused(node("module", a=[[name, value]], **about), net)
    refused(node("module", c=about["c"], a=[], p=[], b=[[name, node("list", v=[1])]], k=[]), net)
    assert before == {key: vars(net).get(key) for key in (*vars(net), "forward", "__class__")}


def test_a_class_keeps_its_methods():
    for name in ("method", "reported", "__init__", "__new__", "__bases__", "__setattr__"):
        refused(node("class", a=[[name, 1]]), forging.Trapped)
    put(node("class", a=[["count", 3]]), forging.Trapped)
    assert vars(forging.Trapped)["count"] == 3
    type.__setattr__(forging.Trapped, "count", 0)


def test_a_parameter_group_keeps_its_parameters():
    net = forging.Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for key, value in (("params", 1), ("lr", "text"), (3, 1), ("lr", node("list", v=[]))):
        before = list(optimizer.param_groups[0]["params"])
        if key != "params":
            refused(node("optimizer", v=[[[key, value]]]), optimizer)
        else:
            put(node("optimizer", v=[[[key, value]]]), optimizer)
        assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], before, strict=True))
    refused(node("optimizer", v=[[]], a=[["step", 1]]), optimizer)


def test_a_loader_has_five_parts():
    loader: Any = DataLoader([1, 2])  # type: ignore[arg-type]
    refused(node("parts", c="x", a=[["_iterator", node("list", v=[])]]), loader)
    refused(node("parts", c="x", a=[["__class__", node("list", v=[])]]), loader)


# ---------------------------------------------------------------------- forms


@pytest.mark.parametrize(
    "forged",
    [
        *([1, 2], {}, {"#": []}, {"#": None}, {"v": 1}, torch.ones(1), np.ones(1), object()),
        *(node(kind) for kind in ("_init__", "_class__", "_setattr__", "keep", "inner", "value")),
        *(node(kind, v=None) for kind in ("list", "dict", "set", "tensor", "array", "bytes")),
        node("bytes", v=b"", t=torch.float32, s=[10**12], d="cpu"),
        node("bytes", v=b"1234", t=torch.float32, s=[1 << 40], d="cpu"),
        node("bytes", v=b"1234", t=torch.float32, s=[-1, -1], d="cpu"),
        node("bytes", v=b"1234", t=print, s=[1], d="cpu"),
        node("bytes", v=b"1234", t=torch.float32, s=[1], d="nowhere"),
        node("bytes", v=b"1234", t=torch.float32, s=[1], d=["cpu"]),
        node("dict", t="defaultdict", f="eval", v=[]),
        node("dict", t="dict", v=[[[1], 2]]),
        node("dict", t="exec", v=[]),
        node("date", c="sys", v="x"),
        node("date", c="timezone", v="x"),
        node("written", c="eval", v="1"),
        node("written", c="Fraction", v="1e999999999"),
        node("range", v=["a", 1, 1]),
        node("size", v=[torch.ones(1)]),
        node("same", p=[1]),
        node("deque", v=[1], m="x"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_in_one_line(forged: Any):
    refused(forged)


def test_deep_nesting_is_refused():
    deep: Any = 1
    for _ in range(5000):
        deep = node("list", v=[deep])
    refused(deep)


def test_an_array_that_is_a_file_is_not_written_to(tmp_path: Path):
    (tmp_path / "data").write_bytes(bytes(8))
    mapped = np.memmap(tmp_path / "data", np.uint8, "r+")
    for live in (mapped, np.asarray(mapped)):
        if type(live) is np.ndarray:
            refused(node("array", v=np.ones(8, np.uint8)), live)
        else:
            assert put(node("array", v=np.ones(8, np.uint8)), live) is not live
    mapped.flush()
    assert (tmp_path / "data").read_bytes() == bytes(8)


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize(
    "leaf",
    [
        *({"dtype": name} for name in ("load", "os", "compile", "hub", "__dict__", "nn", "")),
        *({"array": [dtype, [1], ""]} for dtype in ("O", "O8", "V4", [["a", "O"]], "S4")),
        *(
            {"number": ["O", ""]},
            {"device": "nowhere"},
            {"float": []},
            {"pickle": ""},
            {"a": 1, "b": 2},
        ),
        {"array": ["<f8", [1 << 40], ""]},
    ],
    ids=str,
)
def test_a_leaf_of_a_tree_is_a_number_or_a_name(leaf: Any):
    with pytest.raises(CheckpointError):
        unflatten({ROOT: leaf}, [])


def forged(folder: Path, change: Any) -> Path:
    """A checkpoint whose record says something else, with the right digests."""
    path = folder / file_name(1)
    save(path, *flatten({"w": torch.ones(2)}), {"step": 1})
    record = path.with_suffix(".json")
    fields = decode_record(record.read_bytes())
    change(fields)
    record.write_bytes(encode_record(fields))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.update(file="../x.safetensors"),
        lambda fields: fields.update(file="/etc/passwd"),
        lambda fields: fields.update(file="..\\x"),
        lambda fields: fields.update(file=3),
        lambda fields: fields.update(bytes="many"),
        lambda fields: fields.update(step={}),
        lambda fields: fields.update(files={"../../x": {"rank": 0, "bytes": 1}}),
        lambda fields: fields.update(files=[1]),
        lambda fields: fields.update(tensors=[]),
    ],
)
def test_a_record_names_files_beside_it(tmp_path: Path, change: Any):
    with pytest.raises(CheckpointError):
        load(forged(tmp_path, change))


def test_a_tree_that_is_too_deep_is_no_traceback(tmp_path: Path):
    path = tmp_path / file_name(1)
    deep: Any = 1
    for _ in range(700):
        deep = {"tuple": [deep]}
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        save(path, {ROOT: {"dict": [["a", deep]]}}, [], {"step": 1})
    finally:
        sys.setrecursionlimit(limit)
    with pytest.raises(CheckpointError):
        load(path)


def test_little_that_unpacks_to_much_is_refused():
    bomb = b"".join(packing.pack(bytes(1 << 22), 1))
    with pytest.raises(ValueError, match=r"broadcast|shape"):
        packing.unpack(bomb, 1, 1 << 10)


# ---------------------------------------------------------------------- from end to end


TRAINING = """
    class Owner:
        def __init__(self):
            self.seen = 0
    owner, history = Owner(), []
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data(40), batch_size=4)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            owner.seen += 1
            history.append(loss.item())
    told(model)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, Path, Path]:
    """The script after its training, and a checkpoint of it."""
    bench = Bench(tmp_path_factory.mktemp("trained"))
    script = bench.script(TRAINING)
    return bench, script, bench.run(script).checkpoints[0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("owner", node("tuple", c="types:FunctionType", v=[CODE, node("dict", t="dict", v=[])])),
        ("model", made("subprocess:Popen", args="id")),
        ("print", node("same", p="module __main__/told")),
        ("__builtins__", node("dict", t="dict", v=[["print", 1]])),
        ("loader", [1, 2]),
    ],
)
def test_a_forged_checkpoint_ends_the_run_with_one_line(
    trained: tuple[Bench, Path, Path], tmp_path: Path, name: str, value: Any
):
    bench, script, path = trained
    tree, record = load(path)
    tree["resume"]["values"]["module __main__"][name] = value
    again = tmp_path / path.name
    save(again, *flatten(tree), {key: record[key] for key in ("step", "kind", "resume")})
    ended = bench.run(script, resume=again)
    assert ended.code == 2
    assert ended.out == ""
    assert "cannot resume" in ended.err
    assert "Traceback" not in ended.err
