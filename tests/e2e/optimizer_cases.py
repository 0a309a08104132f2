"""Many small trainings, one forked child each; run by test_optimizers.py as a user's script."""

import atexit
import contextlib
import hashlib
import json
import logging
import os
import sys

import torch
import torch._dynamo  # every optimizer wants it: once here instead of once per child
import torch.optim.swa_utils
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

POISONED = sys.argv[1:] == ["poisoned"]
STEPS, BAD = 10, 4


def data(step, bad=BAD):
    x = torch.randn(8, 4)
    if POISONED and step == bad:
        x[0, 0] = float("nan")
    return x


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def loop(model, optimizer, loss=lambda y: (y**2).mean(), after=lambda: None, before=lambda s: None):
    for step in range(STEPS):
        before(step)
        optimizer.zero_grad()
        loss(model(data(step))).backward()
        after()
        optimizer.step()
    return model


def gan():
    one, two = network(), network()
    first = torch.optim.Adam(one.parameters(), lr=0.01)
    second = torch.optim.Adam(two.parameters(), lr=0.01)
    for step in range(STEPS):
        first.zero_grad()
        (one(data(step)) ** 2).mean().backward()
        first.step()
        second.zero_grad()
        (two(data(-1)) ** 2).mean().backward()
        second.step()
    return one, two


def shared_loss():
    one, two = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (one, two)]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (two(one(data(step))) ** 2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return one, two


def with_closure(make, keyword=False):
    model = network()
    optimizer = make(model.parameters())

    def closure_for(x):
        def closure():
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            return loss

        return closure

    for step in range(STEPS):
        closure = closure_for(data(step))
        result = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
        assert isinstance(result, torch.Tensor)
    return model


def closure_sgd():
    return with_closure(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


def closure_adam():
    return with_closure(torch.optim.Adam)


def closure_keyword():
    return with_closure(lambda p: torch.optim.RMSprop(p, lr=0.01), keyword=True)


def lbfgs():
    return with_closure(lambda p: torch.optim.LBFGS(p, max_iter=3))


def accumulation():
    x = torch.randn(320, 4)
    if POISONED:
        x[BAD * 32 + 2, 1] = float("inf")
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, (batch,) in enumerate(DataLoader(TensorDataset(x), batch_size=8)):
        ((model(batch) ** 2).mean() / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return model


def with_scaler(**form):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, **form)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = (model(data(step)) ** 2).mean()
        scaler.scale(loss).backward()
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return model


def scaler():
    return with_scaler()


def scaler_fused():
    return with_scaler(fused=True)


def compiled_model():
    model = network()
    compiled = torch.compile(model, backend="eager")
    return loop(compiled, torch.optim.SGD(model.parameters(), lr=0.1))


def compiled_step():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    step_once = torch.compile(lambda: optimizer.step(), backend="eager")
    for step in range(STEPS):
        optimizer.zero_grad()
        (model(data(step)) ** 2).mean().backward()
        step_once()
    return model


def averaged():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        (model(data(step)) ** 2).mean().backward()
        optimizer.step()
        average.update_parameters(model)
    return model, average


def added_group():
    model, more = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def before(step):
        if step == 2:
            optimizer.add_param_group({"params": more.parameters(), "lr": 0.001})

    return loop(nn.Sequential(model, more), optimizer, before=before)


def half_and_double():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4).to(torch.bfloat16)
            self.b = nn.Linear(4, 1).double()

        def forward(self, x):
            return self.b(self.a(x.bfloat16()).double())

    model = Mixed()
    return loop(model, torch.optim.AdamW(model.parameters(), lr=0.01))


def complex_weights():
    weight = nn.Parameter(torch.randn(4, dtype=torch.complex64))
    optimizer = torch.optim.Adam([weight], lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        (data(step).to(torch.complex64) @ weight).abs().pow(2).mean().backward()
        optimizer.step()
    return [weight]


def sparse():
    model = nn.Embedding(20, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        (model(torch.randint(0, 20, (8,))) * data(step)).sum().backward()
        optimizer.step()
    return model


def clipped():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return loop(model, optimizer, after=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5))


def checkpointed():
    from torch.utils.checkpoint import checkpoint

    inner, outer = network(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*inner.parameters(), *outer.parameters()], lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = data(step).requires_grad_()
        outer(checkpoint(inner, x, use_reentrant=True)).pow(2).mean().backward()
        optimizer.step()
    return inner, outer


def gradient_penalty():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = data(step).requires_grad_()
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.mean() + (slope.norm(dim=1) - 1).pow(2).mean()).backward()
        optimizer.step()
    return model


def vector_loss():
    model = network()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        y = model(data(step))
        y.backward(gradient=torch.ones_like(y))
        optimizer.step()
    return model


def frozen_at_first():
    model = network()
    model.requires_grad_(False)
    model[2].requires_grad_(True)

    def before(step):
        if step == 3:
            model.requires_grad_(True)

    return loop(model, torch.optim.Adam(model.parameters(), lr=0.01), before=before)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                update = state["momentum"].mul(0.9).add(p.grad, alpha=0.1)
                p.add_(update.tanh(), alpha=-group["lr"])
                state["momentum"].mul_(0.99).add_(p.grad, alpha=0.01)


def own_subclass():
    return loop(model := network(), Lion(model.parameters(), lr=0.01))


def scheduler():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1)
    for step in range(STEPS):
        optimizer.zero_grad()
        (model(data(step)) ** 2).mean().backward()
        optimizer.step()
        schedule.step()
    return model


def first_step():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        (model(data(step, bad=0)) ** 2).mean().backward()
        optimizer.step()
    return model


def exception_in_backward():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def before(step):
        if step == 3:
            y = (model(data(-1)) ** 2).mean()
            y.register_hook(lambda g: 1 / 0)
            with contextlib.suppress(ZeroDivisionError):
                y.backward()

    return loop(model, optimizer, before=before)


def by_hand():
    model = network()
    for step in range(STEPS):
        model.zero_grad()
        (model(data(step)) ** 2).mean().backward()
        for p in model.parameters():
            assert p.grad is not None
            p.data -= 0.1 * p.grad
    return model


def foreign_optimizer():
    class Descent:
        def __init__(self, params):
            self.params = list(params)

        def step(self):
            with torch.no_grad():
                for p in self.params:
                    p -= 0.1 * p.grad

        def zero_grad(self):
            for p in self.params:
                p.grad = None

    model = network()
    return loop(model, Descent(model.parameters()))


CASES = [
    gan, shared_loss, closure_sgd, closure_adam, closure_keyword, lbfgs, accumulation, scaler,
    scaler_fused, averaged, added_group, half_and_double, complex_weights, sparse, clipped,
    checkpointed, gradient_penalty, vector_loss, frozen_at_first, own_subclass, scheduler,
    first_step, exception_in_backward, by_hand, foreign_optimizer, compiled_model, compiled_step,
]  # fmt: skip


def tensors(result):
    if isinstance(result, nn.Module):
        return [*result.parameters(), *result.buffers()]
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for part in result for t in tensors(part)]


def main():
    torch.set_num_threads(1)
    torch._logging.set_logs(all=logging.ERROR)
    for case in CASES:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            torch.manual_seed(3)
            made = [t.detach() for t in tensors(case())]
            digest = hashlib.sha256()
            for tensor in made:
                digest.update(repr(tensor.tolist()).encode())
            finite = all(bool(torch.isfinite(t).all()) for t in made)
            reported = {"pid": os.getpid(), "finite": finite, "digest": digest.hexdigest()}
            print(case.__name__, json.dumps(reported), flush=True)
            # Taking the interpreter down costs a second that twenty children need not spend.
            atexit._run_exitfuncs()
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        if status:
            sys.exit(f"{case.__name__} ended with {status}")


if __name__ == "__main__":
    main()
