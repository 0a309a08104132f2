"""Which lines lead to a backward pass; what an evaluation may change is tested with its advice."""

from __future__ import annotations

from pathlib import Path

from holdfast.source.training_calls import training_in


def test_what_gradients_are_asked_for_and_what_a_backward_pass_needs(tmp_path: Path):
    path = tmp_path / "asked.py"
    path.write_text(
        "for x in data:\n    losses.append(net(x))\n    seen.append(net(x))\n"
        "    slope = torch.autograd.grad(u, [x, self.t])\n    print(w.grad)\n"
        "torch.stack(losses).sum().backward()\n"
    )
    training = training_in((str(path),))
    assert (str(path), 2) in training.lines and (str(path), 3) not in training.lines
    assert training.inputs == {"x", "self", "t", "w"}


def test_a_method_of_a_common_name_is_none_of_the_functions(tmp_path: Path):
    path = tmp_path / "methods.py"
    path.write_text(
        "class Net:\n    def train(self):\n        self.on = True\n"
        "def train():\n    for x in data:\n        net(x).sum().backward()\n"
    )
    training = training_in((str(path),))
    assert training.trains == {"train"} and training.lines == {(str(path), 5), (str(path), 6)}
