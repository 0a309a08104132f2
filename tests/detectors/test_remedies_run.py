"""Every diff is run: what was NaN before is finite after it, and what was fine stays the same."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import tensor as t

from holdfast.detectors import Remedy, remedy
from holdfast.records.nonfinite import Cause

INF = float("inf")
HALF, BF16, DOUBLE = torch.float16, torch.bfloat16, torch.float64


def lazily(**given: Any) -> Callable[[], dict[str, Any]]:
    """Fresh tensors on each call: lists become tensors, all else stays."""
    kind = given.pop("dtype", torch.float32)

    def make() -> dict[str, Any]:
        made = {k: t(v, dtype=kind) if isinstance(v, list) else v for k, v in given.items()}
        return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in made.items()}

    return make


P = lazily(p=[0.0, 0.5, 1.0], y=[0.0, 1.0, 1.0])
PH = lazily(p=[0.0, 0.5, 1.0], dtype=HALF)
X = lazily(x=[[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
AB = lazily(a=[[1.0, 2.0], [1.0, 1.0]], b=[[1.0, 2.0], [3.0, 1.0]])
C = lazily(c=[1.0, 0.3, -1.0])
LARGE = lazily(x=[[104.0, 1.0], [1.0, 2.0]])
LOGITS = lazily(z=[[200.0, 1.0], [1.0, 2.0]])
SCORES = lazily(scores=[[-INF, -INF], [1.0, 2.0]])
MASKED = lazily(scores=[[1.0, 2.0], [1.0, 2.0]], m=t([[True, True], [True, False]]))

# The statement, what goes into it, the headline, a part of the new statement.
CASES: list[tuple[str, Callable[[], dict[str, Any]], str, str]] = [
    # log and its kin
    ("loss = -torch.log(p).mean()", P, "log of 0", "torch.log(p.clamp_min(1e-12))"),
    ("loss = -p.log().mean()", P, "log of 0", "-p.clamp_min(1e-12).log()"),
    ("nll = -(log(p)).mean()", P, "log of 0", "log(p.clamp_min(1e-12))"),
    ("return -torch.log(1 - p).sum()", P, "log of 0", "torch.log((1 - p).clamp_min(1e-12))"),
    ("return -torch.log((1 - p)).sum()", P, "log of 0", "torch.log((1 - p).clamp_min(1e-12))"),
    ("loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()", P, "log of 0",
     "y * torch.log(p.clamp_min(1e-12)) + (1 - y) * torch.log((1 - p).clamp_min(1e-12))"),
    ("a = torch.log(p + 1e-6) + torch.log(1 - p)", P, "log of 0",
     "torch.log((p + 1e-6).clamp_min(1e-12)) + torch.log((1 - p).clamp_min(1e-12))"),
    ("a = torch.log(p + 1e-10)", PH, "log of 0", "torch.log((p + 1e-10).clamp_min(1e-6))"),
    ("lp = torch.log(torch.softmax(z, dim=-1))", LOGITS, "log of 0",
     "torch.log(torch.softmax(z, dim=-1).clamp_min(1e-12))"),
    ("h = -(p * p.log2()).sum()", P, "log2 of 0", "p.clamp_min(1e-12).log2()"),
    ("loss = torch.log(\n    p  # chances\n).mean()", P, "log of 0",
     "p.clamp_min(1e-12)  # chances"),
    ("a = torch.log(p)", PH, "log of 0", "p.clamp_min(1e-6)"),
    ("a = torch.log(p)", lazily(p=[0.0, 0.5], dtype=BF16), "log of 0", "p.clamp_min(1e-12)"),
    ("a = torch.log(p)", lazily(p=[0.0, 0.5], dtype=DOUBLE), "log of 0", "p.clamp_min(1e-12)"),
    ("if p.sum() > 0: a = torch.log(p)", P, "log of 0", "0: a = torch.log(p.clamp_min(1e-12))"),
    ("loss = sum(torch.log(q).mean() for q in [p, p])", P, "log of 0", "q.clamp_min(1e-12)"),
    ("f = lambda q: torch.log(q); z = f(p)", P, "log of 0", "torch.log(q.clamp_min(1e-12)); z"),
    ("β = torch.log(π_θ / 1.0)  # π", lazily(π_θ=[0.0, 0.5]), "log of 0", "(π_θ / 1.0).clamp_min"),
    ("u = (p.log() if p.sum() else p.sqrt())", P, "log of 0", "(p.clamp_min(1e-12).log() if"),
    # sqrt and rsqrt
    ("r = torch.sqrt(v)", lazily(v=[0.0, 1.0]), "sqrt of 0 in backward", "torch.sqrt(v + 1e-12)"),
    ("d = ((a - b) ** 2).sum(dim=-1).sqrt()", AB, "sqrt of 0 in backward",
     "(((a - b) ** 2).sum(dim=-1) + 1e-12).sqrt()"),
    ("d = (a - b).abs().sqrt().mean()", AB, "sqrt of 0 in backward",
     "((a - b).abs() + 1e-12).sqrt()"),
    ("d = (a * b - b * a).sqrt()", AB, "sqrt of 0 in backward", "(a * b - b * a + 1e-12).sqrt()"),
    ("s = torch.sqrt(h.var(dim=0)).mean()", lazily(h=[[1.0, 2.0], [1.0, 5.0]]),
     "sqrt of 0 in backward", "torch.sqrt(h.var(dim=0) + 1e-12)"),
    ("s = torch.sqrt(v)", lazily(v=[-1e-7, 1.0]), "sqrt of a number below 0 (-1e-07)",
     "torch.sqrt(v.clamp_min(1e-12))"),
    ("r = v.sqrt()", lazily(v=[0.0, 1.0], dtype=HALF), "sqrt of 0 in backward",
     "(v + 1e-6).sqrt()"),
    ("y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))", X, "rsqrt of 0",
     "torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-12)"),
    ("y = torch.rsqrt(v)", lazily(v=[0.0, 1.0], dtype=HALF), "rsqrt of 0", "torch.rsqrt(v + 1e-3)"),
    # both ends
    ("a = torch.acos(c)", C, "acos at the edge of [-1, 1] in backward",
     "torch.acos(c.clamp(-1 + 1e-6, 1 - 1e-6))"),
    ("a = torch.acos((u * w).sum(-1))", lazily(u=[[0.6, 0.8]], w=[[0.6, 0.8000002]]),
     "acos at the edge of [-1, 1]", "(u * w).sum(-1).clamp(-1 + 1e-6, 1 - 1e-6)"),
    ("a = c.asin()", C, "asin at the edge of [-1, 1] in backward", "c.clamp(-1 + 1e-6, 1 - 1e-6)"),
    ("a = torch.arctanh(c)", C, "atanh at the edge of [-1, 1]", "c.clamp(-1 + 1e-6, 1 - 1e-6)"),
    ("a = c.erfinv()", C, "erfinv at the edge of [-1, 1]", "c.clamp(-1 + 1e-6, 1 - 1e-6)"),
    ("a = torch.acos(c)", lazily(c=[1.0, 0.3], dtype=HALF),
     "acos at the edge of [-1, 1] in backward",
     "c.clamp(-1 + 1e-3, 1 - 1e-3)"),
    ("a = torch.acos(c)", lazily(c=[1.0, 0.3], dtype=BF16),
     "acos at the edge of [-1, 1] in backward",
     "c.clamp(-1 + 1e-2, 1 - 1e-2)"),
    # powers
    ("g = p ** 0.5", P, "0 to power 0.5 in backward", "(p + 1e-12) ** 0.5"),
    ("g = torch.pow(p, 1 / 3).sum()", P, "0 to power 0.333333 in backward",
     "pow(p + 1e-12, 1 / 3)"),
    ("g = (1 - p) ** gamma", lazily(p=[0.0, 1.0], gamma=0.5), "0 to a fractional power in backward",
     "(1 - p + 1e-12) ** gamma"),
    ("g = v ** 0.5", lazily(v=[-1e-8, 1.0]), "pow of a number below 0 (-1e-08)",
     "v.clamp_min(1e-12) ** 0.5"),
    ("g = p ** -0.5", P, "0 to power -0.5", "p.clamp_min(1e-12) ** -0.5"),
    ("g = p ** -1", P, "0 to power -1", "p.clamp_min(1e-12) ** -1"),
    # division
    ("y = x / x.norm(dim=1, keepdim=True)", X, "0 / 0",
     "x.norm(dim=1, keepdim=True).clamp_min(1e-12)"),
    ("y = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)", X, "0 / 0",
     "/ x.std(1, keepdim=True).clamp_min(1e-12)"),
    ("y = (img - img.min()) / (img.max() - img.min())", lazily(img=[[17.0, 17.0]]), "0 / 0",
     "/ (img.max() - img.min()).clamp_min(1e-12)"),
    ("y = (x - low) / (high - low)", lazily(x=[1.0, 1.0], low=[1.0, 0.0], high=[1.0, 2.0]), "0 / 0",
     "/ (high - low).clamp_min(1e-12)"),
    ("return logits, (nll * mask).sum() / mask.sum()",
     lazily(logits=[1.0], nll=[1.0, 2.0], mask=[0.0, 0.0]), "0 / 0", "mask.sum().clamp_min(1e-12)"),
    ("loss = (ce * chosen).sum() / chosen.sum()", lazily(ce=[1.0, 2.0], chosen=[0.0, 0.0]), "0 / 0",
     "chosen.sum().clamp_min(1e-12)"),
    ("loss = (ce * keep).sum() / keep.sum()", lazily(ce=[1.0, 2.0], keep=t([False, False])),
     "0 / 0",
     "keep.sum().clamp_min(1)"),
    ("w = w / w.sum()", lazily(w=[0.0, 0.0, 0.0]), "0 / 0", "w.sum().clamp_min(1e-12)"),
    ("y = x * 1; y /= sigma", lazily(x=[0.0, 1.0], sigma=[0.0, 1.0]), "0 / 0",
     "y /= sigma.clamp_min(1e-12)"),
    ("y = a / norms / 2", lazily(a=[1.0, 1.0], norms=[0.0, 1.0]), "division by 0",
     "a / norms.clamp_min(1e-12) / 2"),
    ("inv = 1.0 / sigma", lazily(sigma=[0.0, 1.0]), "division by 0",
     "1.0 / sigma.clamp_min(1e-12)"),
    ("inv = torch.reciprocal(sigma)", lazily(sigma=[0.0, 1.0]), "division by 0",
     "torch.reciprocal(sigma.clamp_min(1e-12))"),
    ("a = torch.log(1.0 / x.std(0))", lazily(x=[[1.0, 2.0], [1.0, 3.0]]), "division by 0",
     "1.0 / x.std(0).clamp_min(1e-12)"),
    ("m = total.div(count)", lazily(total=[0.0, 1.0], count=[0.0, 2.0]), "0 / 0",
     "total.div(count.clamp_min(1))"),
    ("m = torch.div(total, lengths)", lazily(total=[0.0, 1.0], lengths=t([0, 2])), "0 / 0",
     "torch.div(total, lengths.clamp_min(1))"),
    ("loss = losses.sum() / len(losses)", lazily(losses=torch.zeros(0)), "0 / 0",
     "losses.sum() / max(len(losses), 1)"),
    ("y = x / n", lazily(x=[0.0, 1.0], n=[0.0, 1.0], dtype=HALF), "0 / 0", "x / n.clamp_min(1e-4)"),
    ("loss = 0.5 * (torch.log(var) + (y - mean) ** 2 / var).mean()",
     lazily(y=[1.0, 2.0], mean=[1.0, 1.0], var=[0.0, 1.0]), "log of 0",
     "(torch.log(var.clamp_min(1e-12)) + (y - mean) ** 2 / var.clamp_min(1e-12))"),
    ("z = a / sigma + torch.log(sigma)", lazily(a=[1.0, 1.0], sigma=[0.0, 1.0]), "division by 0",
     "a / sigma.clamp_min(1e-12) + torch.log(sigma.clamp_min(1e-12))"),
    ("u = v / v.pow(2).sum(-1, keepdim=True).sqrt()", lazily(v=[[0.0, 0.0], [1.0, 2.0]]), "0 / 0",
     "v / (v.pow(2).sum(-1, keepdim=True) + 1e-12).sqrt()"),
    ("u = v / torch.sqrt((v * v).sum(-1)).unsqueeze(-1)", lazily(v=[[0.0, 0.0], [1.0, 2.0]]),
     "0 / 0", "torch.sqrt((v * v).sum(-1) + 1e-12).unsqueeze(-1)"),
    ("u = v / (v ** 2).sum() ** 0.5", lazily(v=[0.0, 0.0], dtype=HALF), "0 / 0",
     "v / ((v ** 2).sum() + 1e-6) ** 0.5"),
    ("a = torch.log(torch.sqrt(v))", lazily(v=[0.0, 1.0]), "log of 0",
     "torch.log(torch.sqrt(v + 1e-12))"),
    # overflow of exp
    ("e = torch.exp(x)", LARGE, "exp overflow (max 104)", "torch.exp(x.clamp_max(80.0))"),
    ("e = x.exp().mean()", LARGE, "exp overflow (max 104)", "x.clamp_max(80.0).exp()"),
    ("e = torch.exp(x)", lazily(x=[14.0, 1.0], dtype=HALF), "exp overflow (max 14)",
     "torch.exp(x.clamp_max(10.0))"),
    ("std = torch.exp(0.5 * logvar) ** 2", lazily(logvar=[400.0, 1.0]), "exp overflow (max 200)",
     "torch.exp((0.5 * logvar).clamp_max(20.0)) ** 2"),
    ("e = torch.expm1(x)", LARGE, "expm1 overflow (max 104)", "torch.expm1(x.clamp_max(80.0))"),
    ("e = torch.cosh(x)", LARGE, "cosh overflow (max 104)", "torch.cosh(x.clamp(-80.0, 80.0))"),
    ("e = torch.sinh(-x)", LARGE, "sinh overflow (max 104)", "torch.sinh((-x).clamp(-80.0, 80.0))"),
    # masks
    ("att = torch.softmax(scores, dim=-1)", SCORES, "softmax over a row that is all -inf",
     "scores.clamp_min(-6e4)"),
    ("att = scores.masked_fill(m, float('-inf')).softmax(-1)", MASKED,
     "softmax over a row that is all -inf", "scores.masked_fill(m, -6e4).softmax(-1)"),
    ("att = F.softmax(torch.where(m, -torch.inf, scores), dim=-1)", MASKED,
     "softmax over a row that is all -inf", "where(m, -6e4, scores)"),
    ("att = torch.softmax(s.masked_fill(s < 5, float('-inf')), -1)",
     lazily(s=[[1.0, 2.0]], dtype=HALF), "softmax over a row that is all -inf",
     "s.masked_fill(s < 5, -6e4)"),
    ("att = torch.softmax((s + 1).masked_fill(s < 5, -math.inf), -1)",
     lazily(s=[[1.0, 2.0]], dtype=HALF), "softmax over a row that is all -inf",
     "(s + 1).masked_fill(s < 5, -6e4)"),
    ("lp = F.log_softmax(scores / tau, dim=-1)[1]", lazily(**SCORES(), tau=2.0),
     "log_softmax over a row that is all -inf", "F.log_softmax((scores / tau).clamp_min(-6e4)"),
    ("z = torch.logsumexp(scores, 1)", SCORES, "logsumexp over a row that is all -inf",
     "scores.clamp_min(-6e4)"),
    ("bias = (1.0 - keep) * float('-inf')", lazily(keep=[0.0, 1.0]), "0 * inf",
     "(1.0 - keep) * -6e4"),
    # torch.where looks at both branches
    ("y = torch.where(x > 0, x.sqrt(), 0.0)", lazily(x=[0.0, 1.0]), "sqrt of 0 behind a mask",
     "torch.where(x > 0, x, 1).sqrt()"),
    ("y = torch.where(c.abs() < 1, torch.acos(c), 0.0)", C,
     "acos at the edge of [-1, 1] behind a mask",
     "torch.acos(torch.where(c.abs() < 1, c, 0))"),
    ("y = torch.where(x > 0, x ** 0.3, torch.zeros_like(x))", lazily(x=[0.0, 1.0]),
     "0 to power 0.3 behind a mask", "torch.where(x > 0, x, 1) ** 0.3"),
    ("y = torch.sqrt(x * 3).masked_fill(x == 0, 0.0)", lazily(x=[0.0, 1.0]),
     "sqrt of 0 behind a mask", "torch.sqrt(torch.where(x == 0, 1, x * 3)).masked_fill"),
    ("y = (2 * torch.sqrt(x)).masked_fill(x == 0, 0.0)", lazily(x=[0.0, 1.0]),
     "sqrt of 0 behind a mask", "2 * torch.sqrt(torch.where(x == 0, 1, x))"),
    ("y = torch.sqrt(x).where(x > 0, 0.0)", lazily(x=[0.0, 1.0]),
     "sqrt of 0 behind a mask", "torch.sqrt(torch.where(x > 0, x, 1)).where(x > 0, 0.0)"),
    # reductions of nothing and of one
    ("loss = F.cross_entropy(logits, y)", lazily(logits=[[1.0, 2.0]], y=t([-100])),
     "cross entropy in which every target is ignored",
     'F.cross_entropy(logits, y, reduction="sum") / (y != -100).sum().clamp_min(1)'),
    ("loss = 0.5 * F.cross_entropy(out.view(-1, 3), y.view(-1), ignore_index=pad) + 1",
     lazily(out=[[[1.0, 2.0, 3.0]]], y=t([[7]]), pad=7),
     "cross entropy in which every target is ignored",
     "(y.view(-1) != pad).sum().clamp_min(1)) + 1"),
    # fp16
    ("s = x.sum()", lazily(x=[60000.0, 60000.0], dtype=HALF),
     "fp16 overflow in sum, beyond 65,504",
     "x.float().sum()"),
]  # fmt: skip

# These change what is computed for small samples, or what an infinite value counts as.
OTHERWISE = (
    "std(", "var(", "where(m", "masked_fill(", "a * b - b * a", "float('-inf')",
)  # fmt: skip


def new_statement(cure: Remedy, code: str) -> str:
    """Apply a diff to its statement, the way `patch` would: context and old lines must fit."""
    head, *lines = cure.diff.split("\n")
    assert head == "@@ train.py:88 @@"
    old = textwrap.dedent("\n".join(line[1:] for line in lines if line[0] in " -"))
    assert old == code, "the old side is the statement as it stands in the file"
    assert all(line[1:].startswith("    ") for line in lines), "indented as in the file"
    return textwrap.dedent("\n".join(line[1:] for line in lines if line[0] in " +"))


def finite(values: list[torch.Tensor]) -> bool:
    return all(bool(value.isfinite().all()) for value in values)


@pytest.mark.parametrize(("code", "make", "headline", "part"), CASES, ids=[c[0] for c in CASES])
def test_the_new_statement_is_finite(torch_witness, run_statement, code, make, headline, part):
    results, grads = run_statement(code, make)
    assert not (finite(results) and finite(grads)) or "exp" in code, "the fault is real"
    cure = remedy(torch_witness(code, make))
    assert cure.headline.startswith(headline)
    new = new_statement(cure, code)
    assert part in new
    results, grads = run_statement(new, make)
    assert results and finite(results) and finite(grads)
    assert cure.confidence >= 0.6 and "\n" not in cure.text and cure.text[-1] != "."


# Here the divisor may be a tensor of many counts, which Python's max does not take.
UNSEEN = ("torch.div(total, lengths)",)


@pytest.mark.parametrize(("code", "make", "headline", "part"), CASES, ids=[c[0] for c in CASES])
def test_a_witness_with_no_eye_for_counts(torch_witness, run_statement, code, make, headline, part):
    cure = remedy(torch_witness(code, make, sparing=True))
    assert cure.headline.startswith(headline)
    if any(words in code for words in UNSEEN):
        assert not cure.diff
        return
    new = new_statement(cure, code)
    assert part in new
    results, grads = run_statement(new, make)
    assert results and finite(results) and finite(grads)


def healthy(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The same shapes and formats with values that do no harm."""

    def one(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value or 3
        if value.numel() == 0:
            value = torch.zeros(4)
        if value.is_floating_point():
            if name in ("mask", "count", "n_pos"):
                return torch.ones_like(value)
            return (torch.rand(value.shape, generator=seed) * 0.6 + 0.2).to(value.dtype)
        return torch.ones_like(value)

    def made() -> dict[str, Any]:
        seed.manual_seed(0)
        return {name: one(name, value) for name, value in make().items()}

    seed = torch.Generator()
    return made


@pytest.mark.parametrize(
    ("code", "make"), [c[:2] for c in CASES if not any(w in c[0] for w in OTHERWISE)],
    ids=[c[0] for c in CASES if not any(w in c[0] for w in OTHERWISE)],
)  # fmt: skip
def test_the_new_statement_does_the_same_with_healthy_values(
    torch_witness, run_statement, code, make
):
    new = new_statement(remedy(torch_witness(code, make)), code)
    old_results, old_grads = run_statement(code, healthy(make))
    results, grads = run_statement(new, healthy(make))
    assert len(results) == len(old_results) and len(grads) == len(old_grads)
    for own, theirs in zip([*results, *grads], [*old_results, *old_grads], strict=True):
        rtol, atol = (2e-2, 2e-2) if theirs.dtype in (HALF, BF16) else (1e-3, 1e-5)
        torch.testing.assert_close(own.double(), theirs.double(), rtol=rtol, atol=atol)


def test_a_norm_that_is_differentiated_twice():
    """The eikonal term of a distance function: the derivative of a norm's derivative at 0."""

    def loss_of(norm):
        warp = torch.eye(3, requires_grad=True)
        x = torch.zeros(2, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(norm(x, warp).sum(), x, create_graph=True)
        ((slope.pow(2).sum(-1) - 1).pow(2).mean() + norm(x, warp).sum()).backward()
        assert warp.grad is not None
        return warp.grad

    code = "r = torch.norm(x @ self.warp, dim=-1)"
    cause = Cause(
        phase="backward", op="DivBackward0", file="sdf.py", line=40, start=40, code=code,
        how="replay", dtype="float32",
    )  # fmt: skip
    cure = remedy(cause)
    new = cure.diff.split("\n")[-1][1:]
    assert new == "r = ((x @ self.warp).square().sum(dim=-1) + 1e-12).sqrt()"
    assert not loss_of(lambda x, w: torch.norm(x @ w, dim=-1)).isfinite().all()
    assert loss_of(lambda x, w: ((x @ w).square().sum(dim=-1) + 1e-12).sqrt()).isfinite().all()
