"""What is said about a recorded cause: headline, words, and where no diff may be offered."""

from __future__ import annotations

import ast
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.detectors import Remedy, remedy
from holdfast.records import RecordError
from holdfast.records.nonfinite import Cause, TensorStats
from holdfast.run import decode, encode


def stat(low: Any = 0.5, high: Any = 1.0, **more: Any) -> TensorStats:
    """Numbers of one input; by default ten healthy ones."""
    known: dict[str, Any] = {"shape": (10,), "dtype": "float32", "mean": 0.7, "numel": 10, **more}
    return TensorStats(min=low, max=high, **known)


NAN, POSITIVE = stat(None, None, mean=None, nan=10), stat()
BAD = stat(nan=1)
TOO_LARGE = stat(inf=2)
HALF = {"dtype": "float16"}
ZERO = stat(0.0, zeros=2)
MINUS = stat(-0.3, zeros=1, negative=4)
SCALAR = {"shape": (), "numel": 1}


def cause(op: str, code: str = "", *inputs: Any, output: Any = BAD, **more: Any) -> Cause:
    known: dict[str, Any] = {
        "how": "replay", "observed": 413, "phase": "backward" if "Backward" in op else "forward",
        "op": op, "file": "model.py", "line": 88, "function": "f", "code": code, "start": 88,
        "inputs": inputs, "output": output, "dtype": output.dtype if output else "",
        "samples_bad": 1, **more,
    }  # fmt: skip
    return Cause(**known)


def reported(op: str, code: str = "", *inputs: Any, **more: Any) -> Remedy:
    return remedy(cause(op, code, *inputs, **more))


# What is told in words because a diff could be wrong: op, statement, inputs, headline, words.
WORDS: list[tuple[str, str, list[Any], str, str]] = [
    ("AddmmBackward0", "h = self.fc(x, y)", [BAD, POSITIVE, ZERO],
     "0 * NaN in the gradient of addmm's weights", "before the model sees them"),
    ("log", "a = torch.log(x)", [MINUS], "log of a number below 0 (-0.3)", "would hide the sign"),
    ("sqrt", "a = x.sqrt()", [MINUS], "sqrt of a number below 0 (-0.3)", "would hide the sign"),
    ("pow", "a = x ** 0.5", [MINUS], "pow of a number below 0 (-0.3)", "would hide the sign"),
    ("pow", "a = x ** y", [MINUS, POSITIVE], "pow of a number below 0 (-0.3)", "would hide"),
    ("log", "a = torch.log(self.sigma)", [stat(-3e-5, negative=1)],
     "log of a number below 0 (-3e-05)", "no result of rounding"),
    ("acos", "a = torch.acos(x)", [stat(-3.0, 2.5)], "acos outside of [-1, 1]", "normalise it"),
    ("log", "x.log_()", [ZERO], "log of 0", "clamp"),
    ("log", "a = torch.log(", [ZERO], "log of 0", "clamp"),
    ("log", "", [ZERO], "log of 0", "2 of 10 values that go into log are 0"),
    ("log", "return self.log(x)", [ZERO], "log of 0", "clamp"),
    ("log", "logger.log('p', p)", [ZERO], "log of 0", "clamp"),
    ("log", "a = np.log(x) + math.log(y)", [ZERO], "log of 0", "clamp"),
    ("log", "out = self.head(x)", [ZERO], "log of 0", "clamp"),
    ("log", "a = [f(log(x)), log(n)]", [ZERO], "log of 0", "clamp"),
    ("log", "a = sum([torch.log(b) + torch.log(c), torch.log(d) + torch.log(e)])", [ZERO],
     "log of 0", "clamp"),
    ("div", "y = a / b / c", [POSITIVE, ZERO], "division by 0", "clamp it from below if"),
    ("div", "y = x / (a - b)", [POSITIVE, MINUS], "division by 0", "takes both signs"),
    ("div", "y = x / x.mean()", [MINUS, stat(0.0, 0.0, zeros=1, **SCALAR)], "0 / 0",
     "the divisor is 0"),
    ("div", "y = x / total_loss_of(x)", [stat(), stat(0.0, 0.0, zeros=1, **SCALAR)],
     "division by 0", "else replace a divisor of 0 by 1e-12"),
    ("div", "y = x / step", [POSITIVE], "0 / 0", "the divisor is the number 0"),
    ("div", "y = weights / weights.sum()",
     [stat(-2.0, 2.0, negative=5), stat(0.0, 0.0, zeros=1, **SCALAR)],
     "division by 0", "else replace a divisor"),
    ("masked_fill", "a = a.masked_fill(m, float('-inf'))", [POSITIVE],
     "masked_fill returned", "no rule"),
    ("div", "y = x / y", [stat(inf=3), POSITIVE], "infinity goes into div",
     "look at what made them"),
    ("exp", "e = x.exp_()", [stat(1.0, 104.0)], "exp overflow (max 104)", "fp32 ends at exp(88.7)"),
    ("exp", "e = f(x)", [stat(1.0, 1440.0)], "exp overflow (max 1,440)", "unscaled input"),
    ("sub", "z = s - s.max(1, keepdim=True).values", [stat(inf=5), stat(inf=1)], "inf - inf",
     "finfo"),
    ("mul", "o = scores * gate", [stat(inf=2), stat(0.0, 0.9, zeros=3)], "inf * 0", "masked_fill"),
    ("bmm", "o = torch.bmm(s, v)", [stat(inf=2), ZERO], "infinity goes into bmm", "finfo"),
    ("_softmax", "a = self.attn(x)", [stat(inf=20)], "softmax over a row that is all -inf",
     "low finite number"),
    ("nll_loss_forward", "loss = self.criterion(out, y)",
     [POSITIVE, stat(-100.0, -100.0, dtype="int64")], "cross entropy in which every target",
     "at least 1"),
    ("nll_loss2d_forward", "l = F.cross_entropy(o, y, weight=w)",
     [POSITIVE, stat(1.0, 1.0, dtype="int64"), ZERO], "bad weights in cross entropy",
     "counts.clamp_min(1)"),
    ("mean", "m = x[m].mean()", [stat(None, None, mean=None, numel=0)], "mean of an empty tensor",
      "max(x.numel(), 1)"),
    ("std", "s = x.std(0)", [stat(numel=1)], "std of one sample", "correction=0"),
    ("native_batch_norm", "h = self.bn(x)", [stat(3.0, 3.0)], "batch_norm of equal values", "eps"),
    ("_ctc_loss", "l = ctc(x, y, n, m)", [POSITIVE], "ctc_loss of a target", "zero_infinity"),
    ("StdBackward0", "s = x.std(0)", [POSITIVE], "std of equal values in backward", "x.var("),
    ("LinalgVectorNormBackward0", "d = x.norm(p=1)", [POSITIVE], "norm of a zero",
     "add an epsilon under the root"),
    ("DivBackward0", "y = a / b", [POSITIVE], "division by 0 in backward",
     "torch.where(b == 0, 1e-12, b)"),
    ("MulBackward0", "y = a * b", [ZERO], "0 * inf in backward", "before the product"),
    ("tan", "y = torch.tan(x)", [POSITIVE], "tan returned non-finite values",
     "knows no rule"),
    ("my_kernel", "y = mine(x)", [stat(-1e7, 3e8)], "my_kernel returned",
     "lower the learning rate"),
    ("cos", "y = x.cos()", [stat(nan=3)], "NaN goes into cos", "was already NaN"),
    ("SinBackward0", "y = x.sin()", [stat(nan=3)], "NaN goes into sin", "in what comes after it"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "code", "inputs", "headline", "words"), WORDS, ids=[f"{w[0]}: {w[1]}" for w in WORDS]
)
def test_what_is_reported_in_words_only(op, code, inputs, headline, words):
    output = TOO_LARGE if op == "exp" else BAD
    cure = reported(op, code, *inputs, output=output)
    assert cure.headline.startswith(headline)
    assert words in cure.text
    assert cure.diff == ""
    assert 0 < cure.confidence < 1 and len(cure.text) < 320 and "\n" not in cure.text


@pytest.mark.parametrize(
    ("op", "code", "headline", "words"),
    [
        ("convolution", "h = self.conv(x)", "fp16 overflow in convolution, beyond 65,504",
     "bf16"),
        ("addmm", "h = self.fc(x)", "fp16 overflow in addmm, beyond 65,504", "enabled=False"),
        ("native_layer_norm", "h = self.ln(x)", "fp16 overflow in layer_norm", "fp32"),
        ("mul", "y = a * b", "fp16 overflow in mul, beyond 65,504 (inputs up to 300)", "fp32"),
        ("AddmmBackward0", "h = self.fc(x)", "fp16 overflow in backward of addmm", "GradScaler"),
    ],
)  # fmt: skip
def test_fp16(op, code, headline, words):
    large = stat(-1.0, 300.0, **HALF)
    cure = reported(op, code, large, large, output=stat(inf=2, **HALF))
    assert cure.headline.startswith(headline) and words in cure.text and not cure.diff


@pytest.mark.parametrize("op", ["addmm", "convolution", "mul", "sum", "pow", "norm"])
def test_huge_values_say_that_training_ran_away(op):
    huge = stat(-1e30, 2e30)
    cure = reported(op, "h = f(x)", huge, huge, output=TOO_LARGE)
    assert cure.headline == f"fp32 overflow in {op} (inputs up to 2e+30)"
    assert "learning rate" in cure.text
    back = reported("MmBackward0", "h = self.rnn(x)", huge, output=TOO_LARGE)
    assert back.headline.startswith("gradient overflow in backward of mm")


def test_what_overflows_far_from_zero_is_no_zero():
    kept, huge = stat(1e-4, 1e-4), stat(1e34, 1e34)
    for op, code in ("SqrtBackward0", "torch.sqrt(d)"), ("LogBackward0", "torch.log(d)"):
        cure = reported(op, f"loss = {code}", kept, huge, output=TOO_LARGE)
        assert cure.headline.startswith("gradient overflow in backward") and not cure.diff
        assert "of 0" in reported(op, f"loss = {code}", stat(0.0, zeros=1), stat()).headline


def test_a_number_that_is_divided_by_may_be_tiny():
    cure = reported("div", "a = logits / temperature", POSITIVE, output=TOO_LARGE)
    assert cure.headline == "division by 0, or by next to nothing" and "count" not in cure.text


def test_an_infinity_that_a_mask_wrote():
    cure = reported("masked_fill", "a = a.masked_fill(m, low)", POSITIVE, output=TOO_LARGE)
    assert cure.headline == "an infinity from a mask reaches the loss" and not cure.diff


def test_an_infinite_column_is_not_filled():
    reported_of = remedy(cause("", output=TOO_LARGE, phase="input", columns=(3,), sample=60))
    assert "fillna" not in reported_of.text and "find what is infinite there" in reported_of.text
    assert "fillna" in remedy(cause("", phase="input", columns=(3,))).text


def test_a_parameter_that_was_bad_before():
    cure = remedy(cause("", output=stat(nan=3), layer="head.bias", phase="parameter"))
    assert cure.headline == "head.bias is NaN in 3 of 10 values"
    assert "torch.empty" in cure.text and "checkpoint" in cure.text
    assert cure.diff == "" and cure.confidence > 0.9


def test_a_sample_that_was_bad_before():
    cure = remedy(cause("", "", NAN, phase="input", sample=20817))
    assert cure.headline == "sample 20817 holds NaN"
    assert "dataset[20817]" in cure.text
    assert "search the dataset" in remedy(cause("", phase="input")).text
    cure = remedy(cause("", "x = x / s", NAN, phase="input", variable="x"))
    assert cure.headline == "x holds NaN after this line" and "print x before it" in cure.text


def test_a_library_is_not_the_users_to_change():
    code = "a = torch.log(p)"
    assert reported("log", code, ZERO).diff
    assert not reported("log", code, ZERO, file="venv/lib/site-packages/lib/losses.py").diff


@pytest.mark.parametrize("line", ["length = sq.sqrt()", "length = (v * v).sum() ** 0.5"])
def test_a_clamp_behind_a_root_would_leave_its_gradient_nan(line):
    around = [[87, f"    {line}"], [88, "    u = v / length"]]
    cure = reported("div", "u = v / length", ZERO, stat(0.0, zeros=1, numel=40), excerpt=around)
    assert "inside the square root" in cure.text and not cure.diff


@pytest.mark.parametrize("made", ["a.norm(dim=1, keepdim=True)", "a.std()", "a.abs().view(-1)"])
def test_a_divisor_that_the_line_above_makes_positive_is_clamped(made):
    around = [[87, f"    q = {made}"], [88, "    u = a / q"]]
    cure = reported("div", "u = a / q", ZERO, stat(0.0, 0.0, zeros=1, numel=1), excerpt=around)
    assert "u = a / q.clamp_min(1e-12)" in cure.diff
    around[0][1] = "    q = a.mean()"
    cure = reported("div", "u = a / q", ZERO, stat(0.0, 0.0, zeros=1, numel=1), excerpt=around)
    assert not cure.diff and "torch.where(q == 0, 1e-12, q)" in cure.text


def test_what_torch_computes_without_the_zero_is_named():
    cure = reported("log", "lp = torch.log(torch.softmax(z, -1))", ZERO)
    assert "use log_softmax, which never forms it" in cure.text and "clamp_min" in cure.diff
    cure = reported("exp", "l = torch.log(torch.exp(x).sum(1))", stat(1.0, 104.0), output=TOO_LARGE)
    assert "logsumexp and softplus do not overflow" in cure.text


def test_one_infinite_score_spoils_its_row():
    cure = reported("_softmax", "a = s.softmax(-1)", stat(inf=1), output=NAN)
    assert cure.headline == "infinity goes into softmax" and "look at what made" in cure.text


def test_the_line_decides_between_places_in_one_statement():
    code = (
        'LOSSES = {\n    "a": lambda x: x.exp().sum(),\n    "b": lambda x: torch.exp(x).sum(),\n}'
    )
    given = cause("exp", code, stat(1.0, 104.0), output=TOO_LARGE, line=90)
    assert remedy(given).diff.split("\n")[3:5] == [
        '-    "b": lambda x: torch.exp(x).sum(),',
        '+    "b": lambda x: torch.exp(x.clamp_max(80.0)).sum(),',
    ]


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("d = x.norm(dim=1)", "d = (x.square().sum(dim=1) + 1e-12).sqrt()"),
        ("d = (a - b).norm(2, -1, keepdim=True)", None),
        ("d = torch.linalg.vector_norm(a - b, dim=-1, keepdim=True)",
         "d = ((a - b).square().sum(dim=-1, keepdim=True) + 1e-12).sqrt()"),
        ("d = torch.norm(a - b, 2, 1)", "d = ((a - b).square().sum(dim=1) + 1e-12).sqrt()"),
        ("d = torch.norm(a, p=2)", "d = (a.square().sum() + 1e-12).sqrt()"),
        ("d = torch.linalg.norm(a, 2)", ""),
        ("d = a.norm(p)", ""),
    ],
)  # fmt: skip
def test_a_norm_with_a_root_that_is_smooth(code, new):
    diff = reported("LinalgVectorNormBackward0", code, POSITIVE).diff
    new = "d = ((a - b).square().sum(dim=-1, keepdim=True) + 1e-12).sqrt()" if new is None else new
    assert diff.split("\n")[-1][1:] == new


def test_the_diff_is_indented_as_the_file_and_parses():
    code = "loss = (\n    torch.log(p)  # π\n    .mean()\n)"
    excerpt = [[87, "\tdef f(p):"], [88, "\t\tloss = ("], [89, "\t\t    torch.log(p)  # π"]]
    cure = reported("log", code, ZERO, excerpt=excerpt)
    assert cure.diff == (
        "@@ model.py:88 @@\n \t\tloss = (\n-\t\t    torch.log(p)  # π\n"
        "+\t\t    torch.log(p.clamp_min(1e-12))  # π\n \t\t    .mean()\n \t\t)"
    )
    assert cure.text.endswith("clamp the argument: torch.log(p.clamp_min(1e-12))")


@pytest.mark.parametrize(
    "code",
    [
        "for q in torch.log(p):", "with f(torch.log(p)) as g:",
        "while torch.log(p).sum() > 1:", "return torch.log(p)", "yield torch.log(p)",
        "assert torch.log(p).sum() > 1, f'{p.log()}'", "x: Tensor = torch.log(p)",
        "await g(torch.log(p))",
    ],
)  # fmt: skip
def test_every_kind_of_statement(code):
    diff = reported("log", code, ZERO).diff
    new = [line[1:] for line in diff.split("\n") if line.startswith("+")]
    assert new == [code.split("\n")[0].replace("torch.log(p)", "torch.log(p.clamp_min(1e-12))")]


def test_a_later_step_is_less_certain_than_the_very_batch():
    sure = [remedy(cause("log", "", ZERO, how=h)).confidence for h in ("replay", "next")]
    assert sure[0] > sure[1]


def test_numbers_come_as_json_has_them():
    given = cause("exp", "e = torch.exp(x)", stat(1.0, math.inf, mean=math.nan, inf=1))
    assert remedy(Cause.from_dict(decode(encode(given.to_dict())))) == remedy(given)


def test_a_thousand_terms_are_no_problem():
    code = "a = torch.log(p) + " + " + ".join(["b"] * 1500)
    assert "clamp_min" in reported("log", code, ZERO).diff


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["NaN", "forward", "backward", "x / y", "float16", "log", "input"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TensorStats.fields()), inner)
    ),
    max_leaves=6,
)  # fmt: skip
NAMES = sorted({op for op, *_ in WORDS} | {"log_softmax", "rsqrt", "erfinv", "reciprocal"})
CODES = [code for _, code, *_ in WORDS] + ["y = torch.where(a, x / y, z ** 0.5) @ torch.log(q)"]


@settings(max_examples=300, deadline=None)
@given(
    broken=st.dictionaries(st.sampled_from(Cause.fields()), junk, max_size=8),
    op=st.sampled_from(NAMES), code=st.sampled_from(CODES), inputs=st.lists(junk, max_size=3),
)  # fmt: skip
def test_nothing_in_a_file_makes_it_fail(broken, op, code, inputs):
    whole = cause(op, code).to_dict()
    for given_ in (broken, whole | {"inputs": inputs} | broken, whole | broken):
        try:
            cure = remedy(Cause.from_dict(given_))
        except RecordError:
            continue  # told by whoever reads it
        assert cure.headline and cure.text and 0 < cure.confidence <= 1
        if cure.diff:
            new = [line[1:] for line in cure.diff.split("\n")[1:] if line[0] in " +"]
            ast.parse("\n".join(new))


def test_rows_that_the_loss_leaves_out_are_cleaned_before_the_model() -> None:
    around = [[87, "z = torch.zeros(())"], [88, "y = model(x)"]]
    found = reported("AddmmBackward0", "y = model(x)", BAD, POSITIVE, ZERO, excerpt=around)
    assert "+y = model(torch.nan_to_num(x))" in found.diff
    # A gradient that is bad already was made elsewhere.
    assert "0 * NaN" not in reported("AddmmBackward0", "y = model(x)", BAD, POSITIVE, BAD).headline
