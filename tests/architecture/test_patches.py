"""Every patch of torch stands in one table, boot/patches.py; a patch anywhere else fails here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .sources import nodes

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "src" / "holdfast" / "boot" / "patches.py"


def patches(source: str) -> list[str]:
    """Assignments to attributes of what was imported from torch, as ``line: code``."""
    found = nodes(source)
    names = {
        (alias.asname or alias.name).split(".")[0]
        for node in found
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if _from_torch(node, alias)
    }
    if not names:
        return []
    for _ in range(2):  # an alias of an alias is as far as anybody goes by accident
        names |= {
            target.id
            for node in found
            if isinstance(node, ast.Assign) and _root(node.value) in names
            for target in node.targets
            if isinstance(target, ast.Name)
        }
    return [
        f"{target.lineno}: {ast.unparse(node)}"
        for node in found
        for target in _changed(node)
        if not isinstance(target, ast.Name) and _root(target) in names
    ] + [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in found
        if isinstance(node, ast.Call) and node.args and _root(node.args[0]) in names
        if ast.unparse(node.func).split(".")[-1]
        in {"setattr", "delattr", "__setattr__", "__delattr__"}
    ]


def _from_torch(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    if isinstance(node, ast.ImportFrom):
        return not node.level and (node.module or "").split(".")[0] == "torch"
    return alias.name.split(".")[0] == "torch"


def _root(node: ast.expr) -> str:
    """The name an attribute chain begins with; empty where a call or a literal does."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _changed(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            todo = list(targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
            todo = [target]
        case _:
            todo = []
    flat: list[ast.expr] = []
    while todo:
        target = todo.pop()
        if isinstance(target, ast.Tuple | ast.List):
            todo += target.elts
        else:
            flat.append(target)
    return flat


def test_torch_is_patched_in_one_file_only():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        if path != TABLE
        for line in patches(path.read_text())
    ]
    assert not found, "patches of torch belong in boot/patches.py:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.Tensor.backward = f",
        "import torch.optim as o\no.Adam.step = f",
        "from torch.optim import Optimizer\nOptimizer.step = f",
        "from torch.utils.data import dataloader as d\nd._BaseDataLoaderIter.__next__ = f",
        "import torch\nsetattr(torch.Tensor, 'backward', f)",
        "import torch\ndelattr(torch, 'x')",
        "import torch\ntype.__setattr__(torch.Tensor, 'backward', f)",
        "import torch\ndel torch.Tensor.backward",
        "import torch\ntorch.Tensor.n += 1",
        "import torch\na, torch.Tensor.b = 1, 2",
        "import torch\ntorch.Tensor.__dict__['x'] = 1",
        "import torch\nT = torch.Tensor\nT.backward = f",
        "def late():\n    import torch\n    torch.Tensor.backward: object = f",
    ],
)
def test_a_patch_is_seen(source):
    assert len(patches(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nx = torch.zeros(3)\nx.grad = None",
        "import torch\nx = torch.zeros(3)\nx[0] = 1",
        "import torch\nclass A(torch.nn.Module):\n    def f(self):\n        self.x = torch.ones(1)",
        "import numpy\nnumpy.x = 1",
        "import torch\nsetattr(other, 'x', torch.Tensor)",
        "from .torch import x\nx.y = 1",
    ],
)
def test_ordinary_code_is_no_patch(source):
    assert not patches(source)
