"""What a forward pass would keep, counted without making it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.diagnosis.memory.activations import CalledModel, kept, last_call


class Tagger(nn.Module):
    """Rebinds its argument, as most models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2)
        )
        self.norm = nn.BatchNorm1d(7)
        self.head = nn.Linear(16, 50)
        self.head.weight = self.embed.weight
        self.fails = False

    def forward(self, x: Tensor, *, twice: bool = False) -> Tensor:
        print("forward")
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        if self.fails:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.head(x) * (2 if twice else 1)


def really_kept(model: nn.Module, *args: Any) -> int:
    seen = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    total = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal total
        if tensor.untyped_storage().data_ptr() not in seen:
            seen.add(tensor.untyped_storage().data_ptr())
            total += tensor.untyped_storage().nbytes()
        return tensor

    # Nothing is let go of: another tensor could get its address.
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        pack(model(*args))
    return total


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Tagger(), torch.randint(0, 50, (3, 7))),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), torch.randn(2, 3, 9, 9)),
        (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(), nn.Linear(16, 4)),
         torch.randn(5, 8)),
    ],
)  # fmt: skip
def test_as_many_bytes_as_a_real_pass_keeps(model: nn.Module, x: Tensor) -> None:
    counted, outputs = kept(CalledModel(model, (x,), {}, model))
    assert sum(counted.values()) == really_kept(model, x)
    assert outputs == model(x).numel() * 4


def test_nothing_is_changed_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    model = Tagger()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    counted, _ = kept(CalledModel(model, (torch.randint(0, 50, (3, 7)),), {"twice": True}, model))
    assert counted["layers.0.linear1"] > 0 and counted["layers.1.self_attn"] > 0
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert not capsys.readouterr().out
    assert not nn.modules.module._global_forward_hooks


def test_it_grows_with_the_batch() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    one, ten = (
        sum(kept(CalledModel(model, (torch.randn(n, 8),), {}, model))[0].values()) for n in (1, 10)
    )
    assert ten == 10 * one


def test_the_last_call_stands_in_the_traceback() -> None:
    model, x = Tagger(), torch.randint(0, 50, (3, 7))
    model.fails = True
    with pytest.raises(torch.OutOfMemoryError) as caught:
        nn.Sequential(nn.Identity(), model)(x)
    call = last_call(caught.value.__traceback__)
    assert call is not None and call.model[1] is model and call.inner is model  # type: ignore[index]
    assert call.args[0] is x and call.batch == 3
    assert last_call(None) is None


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_model_is_counted_without_compiling() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    compilations: list[object] = []

    def backend(graph: Any, _: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    compiled: Any = torch.compile(model, backend=backend)
    x = torch.randn(3, 8)
    counted, _ = kept(CalledModel(compiled, (x,), {}, compiled))
    assert sum(counted.values()) == really_kept(model, x)
    assert not compilations


def test_a_model_that_asks_for_values_says_so() -> None:
    class Asks(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) if input.sum() > 0 else input

    model = Asks(4, 4)
    with pytest.raises(Exception, match="_local_scalar_dense"):
        kept(CalledModel(model, (torch.ones(2, 4),), {}, model))
