"""Compiling: what is chosen and why, odd batches, and falling back."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from holdfast import config
from holdfast.errors import SettingsError
from holdfast.training import compilers, compiling
from holdfast.training.batch_size.memory import HostMemory, host_memory
from holdfast.training.compilers import choose
from holdfast.training.compiling import CompiledModel, CompileSettings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BIG = HostMemory(64 * 2.0**30, 32 * 2.0**30)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Small(nn.Module):
    """Has all that a step may change: weights, a buffer, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.norm(self.linear(x)))


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch):
    """Nothing compiled by one test is known to the next, and no graph goes to a real compiler."""
    torch._dynamo.reset()
    monkeypatch.setattr(compilers, "missing_for", lambda device: "")
    yield
    torch._dynamo.reset()
    torch.backends.cuda.enable_cudnn_sdp(True)


def compile_with(monkeypatch: pytest.MonkeyPatch, backend: Any) -> list[dict[str, Any]]:
    """Have ``torch.compile`` use another backend; what it was asked for is listed."""
    asked: list[dict[str, Any]] = []
    real = torch.compile

    def compile(function: Any, **how: Any) -> Any:
        asked.append(how)
        return real(function, backend=backend, fullgraph=how["fullgraph"], dynamic=how["dynamic"])

    monkeypatch.setattr(torch, "compile", compile)
    return asked


@pytest.fixture
def eager_backend(monkeypatch) -> list[dict[str, Any]]:
    """A backend that takes no time."""
    return compile_with(monkeypatch, "eager")


def make(
    model: nn.Module, mode: Any = "default", said: list[str] | None = None, **more: Any
) -> CompiledModel:
    settings = CompileSettings(mode=mode, force=more.pop("force", False))
    return CompiledModel(model, settings, CPU, 0, (said if said is not None else []).append, **more)


def stepper(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    def step(batch: Any) -> torch.Tensor:
        loss = model(batch[0]).square().mean()
        loss.backward()
        return loss.detach()

    return step


def batch(size: int = 8) -> tuple[torch.Tensor]:
    return (torch.linspace(-1, 1, size * 4).reshape(size, 4),)


# ---------------------------------------------------------------------------- what is chosen


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("true", "default"),
        ("false", "none"),
        ("off", "none"),
        ("none", "none"),
        ("reduce-overhead", "reduce-overhead"),
        ("max-autotune", "max-autotune"),
    ],
)
def test_a_mode_is_a_word_or_a_truth_value(word, name):
    assert config.load(None, [f"mode={word}"], kind=CompileSettings).name == name


def test_an_unknown_mode_is_an_error_that_lists_the_modes():
    with pytest.raises(SettingsError, match="reduce-overhead"):
        CompileSettings(mode="fast")  # pyright: ignore[reportArgumentType]


def test_what_can_be_done_is_chosen_as_asked(monkeypatch):
    monkeypatch.setattr(compilers, "host_memory", lambda: BIG)
    for mode in ("none", "default", "reduce-overhead", "max-autotune"):
        assert choose(mode, CUDA, workers=4) == compilers.Choice(mode)


def test_something_missing_means_none_unless_forced(monkeypatch):
    monkeypatch.setattr(compilers, "missing_for", lambda device: "no Triton: not installed")
    choice = choose("max-autotune", CUDA)
    assert choice.mode == "none"
    assert choice.why == "no Triton: not installed: the model is not compiled"
    assert choose("max-autotune", CUDA, force=True).mode == "max-autotune"


def test_autotuning_needs_host_memory(monkeypatch):
    monkeypatch.setattr(compilers, "host_memory", lambda: HostMemory(8 * 2.0**30, 2.0**30))
    choice = choose("max-autotune", CPU)
    assert choice.mode == "default"
    assert choice.why == (
        "max-autotune needs 16 GB of host memory, 8 GB are there: default instead"
    )
    assert choose("reduce-overhead", CPU) == compilers.Choice("reduce-overhead")


@pytest.mark.parametrize(
    ("mode", "instead"),
    [("reduce-overhead", "default"), ("max-autotune", "max-autotune-no-cudagraphs")],
)
def test_accumulated_gradients_are_not_left_in_a_cuda_graph(monkeypatch, mode, instead):
    monkeypatch.setattr(compilers, "host_memory", lambda: BIG)
    choice = choose(mode, CUDA, accumulate=4)
    assert choice.mode == instead and "overwrite the gradients" in choice.why
    assert choose(mode, CPU, accumulate=4).mode == mode


def test_forked_workers_leave_one_compile_thread(eager_backend):
    assert choose("default", CPU, workers=4, start="forkserver").threads
    assert choose("default", CPU, workers=0, start="fork").threads
    said: list[str] = []
    settings = CompileSettings(mode="max-autotune", force=False)
    compiled = CompiledModel(nn.Linear(2, 2), settings, CPU, 4, said.append, start="fork")
    assert eager_backend[0]["options"]["compile_threads"] == 1
    assert "4 workers of kind fork" in compiled.why
    assert said == [f"compile: {compiled.why}"]


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.undo()  # the real checks
    monkeypatch.setattr(compilers.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compilers.shutil, "which", lambda name: None)
    assert compilers.missing_for(CPU).startswith("no C++ compiler found: looked for ")
    monkeypatch.setenv("CXX", "strange++")
    assert compilers.missing_for(CPU) == "no C++ compiler found: looked for CXX=strange++"
    monkeypatch.setattr(compilers.shutil, "which", lambda name: f"/bin/{name}")
    assert compilers.missing_for(CPU) == ""


def test_a_missing_or_unfit_triton_is_named(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(compilers.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(compilers.importlib.util, "find_spec", lambda name: None)
    assert compilers.missing_for(CUDA) == "no Triton: the package is not installed"

    def breaks() -> bool:
        raise AttributeError("no such symbol")

    monkeypatch.setattr(compilers.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr("torch.utils._triton.has_triton", breaks)
    assert compilers.missing_for(CUDA) == "no Triton: AttributeError: no such symbol"
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    assert "does not support this GPU" in compilers.missing_for(CUDA)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.setattr(compilers.shutil, "which", lambda name: None)
    monkeypatch.delenv("CC", raising=False)
    assert compilers.missing_for(CUDA) == "no C compiler found: looked for gcc or clang"


def test_on_arm_a_trial_in_another_process_decides(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(compilers.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(compilers.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(compilers, "_TRIAL", "import sys; sys.exit(0)")
    assert compilers.missing_for(CPU) == ""
    monkeypatch.setattr(compilers, "_TRIAL", "import os; os.abort()")
    assert compilers.missing_for(CPU) == "ARM CPU: a trial compilation failed (exit code -6)"
    monkeypatch.setattr(compilers, "_TRIAL", "raise OSError('bad LLVM')")
    assert compilers.missing_for(CPU).endswith("(OSError: bad LLVM)")
    monkeypatch.setattr(compilers, "_TRIAL", "import time; time.sleep(60)")
    monkeypatch.setattr(compilers, "_PATIENCE", 0.2)
    assert "did not end" in compilers.missing_for(CPU)


def test_the_memory_of_a_container_counts(tmp_path):
    machine = host_memory(tmp_path)
    assert machine.total > machine.free > 0
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory(tmp_path).total == machine.total
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 300\n")
    assert host_memory(tmp_path) == HostMemory(1000, 400)


# ---------------------------------------------------------------------------- what is run


def test_none_is_a_direct_call_and_touches_nothing():
    model, said = Small(), []
    compiled = make(model, "none", said)
    assert compiled.run(lambda batch: batch, model) is model
    assert model._compiled_call_impl is None and not said and not compiled.why
    assert compiled.seconds == 0 and not compiled.fresh


def test_a_last_partial_batch_never_recompiles(monkeypatch):
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    compile_with(monkeypatch, counter)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    compiled, eager = make(model), copy.deepcopy(model)
    for _epoch in range(3):
        for size in (8, 8, 8, 5, 1):
            own = compiled.run(stepper(model), batch(size))
            assert torch.allclose(own, stepper(eager)(batch(size)))
    assert counter.frame_count == 1
    assert compiled.recompiles == 0 and compiled.odd == 6
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.allclose(one.grad, other.grad)


def test_validation_has_shapes_of_its_own(eager_backend):
    model = nn.Linear(4, 1)
    compiled = make(model)

    def measure(batch: Any) -> torch.Tensor:
        with torch.no_grad():
            return model(batch[0]).mean()

    for _epoch in range(2):
        model.train()
        compiled.run(stepper(model), batch(8))
        assert compiled.fresh is (_epoch == 0)
        model.eval()
        with torch.no_grad():
            for size in (16, 16, 3):
                compiled.run(measure, batch(size))
    assert compiled.odd == 2 and compiled.recompiles == 0


def test_a_run_that_begins_with_the_odd_batch_compiles_the_usual_one(eager_backend):
    model = nn.Linear(4, 1)
    compiled = make(model)
    for size in (3, 8, 8, 8, 3, 8):
        compiled.run(stepper(model), batch(size))
    assert compiled.odd == 2  # the first of the usual ones, and the later short one


def test_the_time_of_compiling_is_apart_from_that_of_steps(eager_backend):
    model = nn.Linear(4, 1)
    compiled = make(model)
    compiled.run(stepper(model), batch())
    first = compiled.seconds
    assert first > 0 and compiled.fresh
    compiled.run(stepper(model), batch())
    assert compiled.seconds == first and not compiled.fresh


def test_a_recompilation_is_counted(eager_backend):
    class Switched(nn.Module):
        flag = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight if self.flag else x + self.weight

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

    model = Switched()
    compiled = make(model)
    compiled.run(stepper(model), batch())
    assert compiled.recompiles == 0
    model.flag = 1
    compiled.run(stepper(model), batch())
    assert compiled.recompiles == 1 and compiled.fresh


def test_batches_that_always_differ_are_reported_once(eager_backend):
    model, said = nn.Linear(4, 1), []
    compiled = make(model, said=said)
    for size in range(1, 80):
        compiled.run(stepper(model), batch(size))
    assert len(said) == 1 and "32 of 33 batches had other shapes" in said[0]


def test_shapes_are_found_in_nested_batches():
    x, y = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    flat = ((x.shape, x.dtype), (y.shape, y.dtype))
    for nested in ([x, y], Pair(x, y), {"x": x, "more": (y, "name", None)}):
        assert tuple(compiling._shapes(nested)) == flat


def test_names_copies_and_state_stay_as_they_are(eager_backend):
    model = Small()
    names = list(model.state_dict())
    compiled = make(model)
    compiled.run(stepper(model), batch())
    assert list(model.state_dict()) == names and type(model) is Small
    copy.deepcopy(model)(batch()[0])
    compiled.undo()
    assert model._compiled_call_impl is None and compiled.mode == "none"


def test_paused_a_hook_neither_recompiles_nor_is_missed(eager_backend):
    model = Small()
    compiled = make(model)
    compiled.run(stepper(model), batch())
    seen: list[int] = []
    handle = model.linear.register_forward_hook(lambda *call: seen.append(1))
    with compiled.paused():
        compiled.run(stepper(model), batch())
    handle.remove()
    compiled.run(stepper(model), batch())
    assert seen == [1] and compiled.recompiles == 0


def test_the_module_inside_ddp_is_compiled(eager_backend):
    inner = nn.Linear(4, 1)
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = inner
    make(wrapped)
    assert inner._compiled_call_impl is not None and wrapped._compiled_call_impl is None


# ---------------------------------------------------------------------------- the loss


def count_operations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations of every graph that is compiled."""
    seen: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(" ".join(str(node.target) for node in graph.graph.nodes))
        return graph

    compile_with(monkeypatch, backend)
    return seen


def squares(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch[0]).square().mean()


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loss_is_compiled_with_the_model_on_one_rank(monkeypatch, ranks):
    seen, model, said = count_operations(monkeypatch), nn.Linear(4, 1), []
    settings = CompileSettings(mode="default", loss=True)
    compiled = CompiledModel(model, settings, CPU, 0, said.append, loss=squares, ranks=ranks)
    for _ in range(2):
        found = compiled.run(lambda batch: compiled.loss(model, batch), batch())
        with compiled.paused():
            assert torch.equal(found, squares(model, batch()))
    assert len(seen) == 1 and ("square" in seen[0]) == (ranks == 1) and "linear" in seen[0]
    assert said == ["compile: 2 ranks wrap the model: it is compiled, the loss is not"][: ranks - 1]
    compiled.undo()
    assert compiled.loss is squares and model._compiled_call_impl is None


# ---------------------------------------------------------------------------- falling back


def fail_in_compiler(monkeypatch) -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no kernel\nfor this")

    compile_with(monkeypatch, backend)


def test_a_loss_that_cannot_be_compiled_is_computed_eagerly(monkeypatch):
    fail_in_compiler(monkeypatch)
    model, said = nn.Linear(4, 1), []
    settings = CompileSettings(mode="default", loss=True)
    compiled = CompiledModel(model, settings, CPU, 0, said.append, loss=squares)
    for _ in range(2):
        found = compiled.run(lambda batch: compiled.loss(model, batch), batch())
        assert torch.equal(found, squares(model, batch()))
    assert compiled.loss is squares and len(said) == 1 and "eager from here on" in said[0]


def test_a_first_step_that_cannot_be_compiled_is_made_eagerly_and_exactly(monkeypatch):
    fail_in_compiler(monkeypatch)
    torch.manual_seed(3)
    model = Small()
    eager, said = copy.deepcopy(model), []
    compiled = make(model, said=said)
    torch.manual_seed(4)
    own = [compiled.run(stepper(model), batch()) for _ in range(2)]
    torch.manual_seed(4)
    theirs = [stepper(eager)(batch()) for _ in range(2)]
    assert own == theirs
    for name, value in eager.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert compiled.mode == "none" and model._compiled_call_impl is None
    assert len(said) == 1 and "no kernel" in said[0] and "eager from here on" in said[0]


def test_what_a_half_made_step_left_is_taken_back(eager_backend):
    model, said = Small(), []
    eager = copy.deepcopy(model)
    for parameter in (*model.parameters(), *eager.parameters()):
        parameter.grad = torch.ones_like(parameter)
    held = model.linear.weight.grad
    compiled = make(model, said=said)
    calls: list[int] = []

    def step(batch: Any) -> torch.Tensor:
        loss = stepper(model)(batch)
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("backward broke")
        return loss

    torch.manual_seed(1)
    own = compiled.run(step, batch())
    torch.manual_seed(1)
    assert torch.equal(own, stepper(eager)(batch()))
    assert model.linear.weight.grad is held and held is not None
    assert eager.linear.weight.grad is not None and torch.equal(held, eager.linear.weight.grad)
    assert torch.equal(model.norm.running_var, eager.norm.running_var)  # pyright: ignore[reportArgumentType]


def test_an_error_of_the_loop_itself_gets_out(eager_backend):
    model, said = nn.Linear(4, 1), []
    compiled = make(model, said=said)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compiled.run(stepper(model), (torch.zeros(2, 5),))
    assert not said


def test_forced_the_error_of_the_compiler_gets_out(monkeypatch):
    fail_in_compiler(monkeypatch)
    model = nn.Linear(4, 1)
    with pytest.raises(Exception, match="no kernel"):
        make(model, force=True).run(stepper(model), batch())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0]


def test_a_model_of_which_nothing_is_compiled_is_reported(eager_backend):
    torch._dynamo.utils.counters.clear()
    model, said = Recurrent(), []
    compiled = make(model, said=said)
    compiled.run(stepper(model), batch())
    assert compiled.mode == "none" and len(said) == 1
    assert "no part of the model could be compiled (Attempted to wrap RNN" in said[0]
    # A model that is given up does not stand in the way of the next.
    other = Small()
    compiled = make(other, said=said)
    compiled.run(stepper(other), batch())
    assert compiled.mode == "default" and compiled.seconds > 0 and len(said) == 1


def test_a_python_that_cannot_compile_is_no_end(monkeypatch):
    def compile(function: Any, **how: Any) -> None:
        raise RuntimeError("torch.compile is not supported on Python 9")

    monkeypatch.setattr(torch, "compile", compile)
    said: list[str] = []
    compiled = make(nn.Linear(4, 1), said=said)
    assert compiled.mode == "none" and "not supported on Python 9" in said[0]
    with pytest.raises(RuntimeError, match="Python 9"):
        make(nn.Linear(4, 1), force=True)


def test_in_a_cuda_graph_results_are_kept_by_copying(eager_backend, monkeypatch):
    monkeypatch.setattr(compiling, "replays", lambda mode, device: True)
    marks: list[int] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    model = nn.Linear(4, 1)
    compiled = make(model, "reduce-overhead")
    fresh: list[bool] = []
    for _ in range(5):
        compiled.run(stepper(model), batch())
        fresh.append(compiled.fresh)
    loss = torch.ones(())
    assert fresh == [True, True, True, False, False]  # compile, warm up, record, replay
    assert len(marks) == 5
    assert compiled.keep(loss) is not loss and torch.equal(compiled.keep(loss), loss)
    compiled.undo()
    assert compiled.keep(loss) is loss


@pytest.mark.slow  # half a minute where nothing is cached
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_real_compiler_gives_the_same_step(monkeypatch):
    monkeypatch.undo()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
    eager, said = copy.deepcopy(model), []
    # One thread: the same code as beside forked workers, and no pool left behind by a test.
    settings = CompileSettings(mode="default")
    compiled = CompiledModel(model, settings, CPU, 2, said.append, start="fork")
    for size in (8, 8, 5, 8):
        own = compiled.run(stepper(model), batch(size))
        assert torch.allclose(own, stepper(eager)(batch(size)), atol=1e-6)
    assert compiled.mode == "default", said
    assert compiled.recompiles == 0 and compiled.odd == 1
    assert len(said) == 1 and compiled.seconds > 0


# ---------------------------------------------------------------------------- pieces of batches


def test_pieces_of_batches_are_compiled_anew(eager_backend):
    model = nn.Linear(4, 1)
    compiled = make(model)
    step = stepper(model)
    compiled.run(step, batch())
    compiled.run(step, batch())
    compiled.batches_are_cut()
    for _ in range(3):
        compiled.run(step, batch(4))
    assert compiled.odd == 0 and compiled.mode == "default"
    compiled.run(step, batch(3))
    assert compiled.odd == 1


def test_pieces_of_batches_are_not_replayed_as_graphs(eager_backend, monkeypatch):
    monkeypatch.setattr(compiling, "replays", lambda mode, device: mode == "reduce-overhead")
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    model, said = nn.Linear(4, 1), list[str]()
    compiled = make(model, "reduce-overhead", said)
    compiled.run(stepper(model), batch())
    compiled.batches_are_cut()
    assert compiled.mode == "default" and eager_backend[-1]["mode"] == "default"
    assert "reduce-overhead replays CUDA graphs" in said[-1]
    loss = torch.zeros(())
    assert compiled.keep(loss) is loss
    compiled.run(stepper(model), batch(4))
    assert compiled.mode == "default" and compiled.odd == 0


def test_eager_and_compiled_passes_do_not_share_an_attention_that_mixes_them_up(
    eager_backend: list[dict[str, Any]],
) -> None:
    usual = torch.backends.cuda.cudnn_sdp_enabled()
    compiled = make(Small())
    assert usual and not torch.backends.cuda.cudnn_sdp_enabled()
    compiled.undo()
    assert torch.backends.cuda.cudnn_sdp_enabled()
