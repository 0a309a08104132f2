"""What shares a name or memory at a checkpoint does so in a resumed run, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from holdfast.checkpoint.tree import flatten, unflatten
from holdfast.resume.refusal import RefusedError
from holdfast.resume.values.baseline import StartValues
from holdfast.resume.values.nodes import MISSING
from holdfast.resume.values.restoring import ValueRestoring
from holdfast.resume.values.taking import Taking
from holdfast.resume.values.tensors import SavedTensors

from .conftest import Bench


def taken(values: dict[str, Any], baseline: StartValues | None = None, **options: Any) -> Any:
    """The nodes of variables, through the form in which files hold them."""
    taking = Taking(SavedTensors(), baseline or StartValues(), lambda name: True, **options)
    nodes = {name: taking.take(value, f"0/{name}") for name, value in values.items()}
    return unflatten(*flatten(nodes))


def restored(live: dict[str, Any], nodes: dict[str, Any]) -> dict[str, Any]:
    """The variables of a resumed script once everything is put back."""
    restoring = ValueRestoring()
    return {n: restoring.value(live.get(n, MISSING), one, f"0/{n}") for n, one in nodes.items()}


def first_round() -> dict[str, Any]:
    """A state that is also the last one in a buffer, as after the first round of a training."""
    held = [np.full(3, 1.0), np.full(3, 2.0)]
    return {"held": held, "state": held[1]}


@pytest.mark.parametrize("order", [("held", "state"), ("state", "held")])
def test_a_name_for_another_array_leaves_the_first_one_as_it_is(order: tuple[str, ...]) -> None:
    script, baseline = first_round(), StartValues()
    names = {name: script[name] for name in order}
    taken(names, baseline, first=True)
    names["state"] = np.full(3, 9.0)
    live = first_round()
    back = restored({name: live[name] for name in order}, taken(names, baseline))
    assert back["held"][1].tolist() == [2.0] * 3
    assert back["state"].tolist() == [9.0] * 3


def test_a_name_for_another_parameter_leaves_the_first_one_as_it_is() -> None:
    def first() -> dict[str, Any]:
        weight = torch.nn.Parameter(torch.ones(2))
        return {"weight": weight, "best": weight}

    script, baseline, live = first(), StartValues(), first()
    taken(script, baseline, first=True)
    script["best"] = torch.nn.Parameter(torch.full((2,), 9.0))
    back = restored(live, taken(script, baseline))
    assert back["weight"] is live["weight"]
    assert back["weight"].tolist() == [1, 1] and back["best"].tolist() == [9, 9]


def test_a_container_that_is_too_long_to_be_saved_is_not_filled_for_another_name() -> None:
    def first() -> dict[str, Any]:
        rows = list(range(5000))
        return {"rows": rows, "chosen": rows}

    script, baseline, live = first(), StartValues(), first()
    taken(script, baseline, first=True)
    script["chosen"] = [1, 2]
    back = restored(live, taken(script, baseline))
    assert len(back["rows"]) == 5000 and back["chosen"] == [1, 2]


@pytest.mark.parametrize("changed", [False, True])
def test_a_part_of_an_array_is_a_part_of_it_afterwards(changed: bool) -> None:
    def first() -> dict[str, Any]:
        data = np.arange(12.0).reshape(4, 3)
        return {"data": data, "row": data[0]}

    script, baseline, live = first(), StartValues(), first()
    taken(script, baseline, first=True)
    script["row"] = script["data"][2, ::2]
    script["data"][1] += 10 * changed
    back = restored(live, taken(script, baseline))
    assert back["data"] is live["data"]
    assert np.array_equal(back["data"], script["data"])
    back["row"][1] = 50
    assert back["data"][2].tolist() == [6, 7, 50]


def test_a_part_that_was_met_before_its_array_is_a_part_of_it() -> None:
    data = np.arange(6, dtype=np.float32)
    script = {"row": data[2:4], "other": data[3:], "bits": data[:1].view(np.int32), "data": data}
    back = restored({}, taken(script))
    back["data"][3] = 7
    assert back["row"].tolist() == [2, 7] and back["other"][0] == 7
    assert back["bits"].dtype == np.int32


def test_arrays_of_a_fixed_place_stay_the_objects_they_are() -> None:
    def first() -> dict[str, Any]:
        data = np.zeros((2, 2), order="F")
        return {"data": data, "left": data[:, 0]}

    script, live = first(), first()
    script["data"][:] = [[1, 2], [3, 4]]
    back = restored(live, taken(script))
    assert back["data"] is live["data"] and back["left"] is live["left"]
    assert back["left"].tolist() == [1, 3]


@pytest.mark.parametrize("order", [("array", "tensor"), ("tensor", "array")])
@pytest.mark.parametrize("fresh", [False, True])
def test_an_array_and_a_tensor_in_one_memory_are_in_one_again(
    order: tuple[str, ...], fresh: bool
) -> None:
    begin = 1 if order[0] == "array" else 0

    def first() -> dict[str, Any]:
        array = np.arange(5.0)[1:].copy()
        return {"array": array, "tensor": torch.from_numpy(array[begin:])}

    script, live, baseline = first(), first(), StartValues()
    taken({name: script[name] for name in order}, baseline, first=True)
    script["array"][2] = 9
    nodes = taken({name: script[name] for name in order}, baseline)
    back = restored({} if fresh else live, nodes)
    assert back["array"].tolist() == [1, 2, 9, 4]
    back["array"][3] = 7
    assert back["tensor"].tolist() == [1, 2, 9, 7][begin:]
    if begin:
        with pytest.raises(RefusedError, match="share their memory"):
            taken({name: script[name] for name in reversed(order)}, baseline)


def test_data_that_a_tensor_shares_with_its_array_is_made_again() -> None:
    array = np.arange(4.0)
    script, baseline = {"array": array, "tensor": torch.from_numpy(array)}, StartValues()
    taken(script, baseline, first=True)
    assert {one["#"] for one in taken(script, baseline).values()} == {"made"}


def test_a_place_outside_of_its_array_is_refused() -> None:
    data = np.arange(4.0)
    nodes = taken({"data": data, "row": data[1:]})
    for layout in (
        ["<f8", [9], [8], 0],
        ["<f8", [2], [8], 24],
        ["<f8", [2], [-8], 0],
        ["O", [1], [8], 0],
    ):
        nodes["row"]["w"] = layout
        with pytest.raises(RefusedError, match="row was not saved in a form"):
            restored({}, nodes)


def test_a_buffer_of_states_goes_on_after_the_state_began_anew(bench: Bench) -> None:
    script = bench.script(
        """
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        held, state, step = [], np.zeros(6, np.float32), 0
        while step < 40:
            after = (state + np.random.randn(6)).astype(np.float32)
            held.append((state, after))
            state = after
            if step % 6 == 5:
                state = np.zeros(6, np.float32)
            step += 1
            if step < 10:
                continue
            x = torch.from_numpy(np.stack([random.choice(held)[1] for _ in range(16)]))
            loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        print([[one.tolist() for one in pair] for pair in held])
        told(model)
        """
    )
    whole = bench.run(script, every=1)
    assert whole.code == 0, whole.err
    assert len(whole.checkpoints) > 20, whole.refusal
    for path in whole.checkpoints[2:20:3] + whole.checkpoints[1:20:6]:
        again = bench.run(script, resume=path, every=99)
        assert (again.code, again.out) == (0, whole.out), (path.name, again.err)
