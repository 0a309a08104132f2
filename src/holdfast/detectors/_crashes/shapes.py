"""Shapes that do not fit: which of the two is wrong, and the line that made it."""

from __future__ import annotations

from ...records.crash import CodeLine
from .earlier_steps import other_input, steps_before
from .facts import Crash, CrashCause, CrashLine, LineValue, lines, numbers, product, shown


def multiplied(crash: Crash) -> CrashCause | None:
    """A matrix product: mostly a ``Linear`` that expects another number of features."""
    found = crash.find(r"shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)")
    if found is None:
        return None
    rows, got, expects, out = map(int, found.groups())
    module = crash.module
    if module is not None and module.weights.get("weight") == (out, expects):
        return _features(crash, module, got, expects, rows)
    tensors = [each for each in crash.operands if each.shape is not None]
    if len(tensors) >= 2:
        left, right = tensors[0], tensors[1]
        headline = f"{left.name} {left.size} times {right.name} {right.size}"
        if got == out:
            return CrashCause(
                headline=headline,
                advice=f"the inner sizes are {got} and {expects}: transpose the second, "
                f"{right.name}.transpose(-2, -1)",
            )
        wrong = crash.origin(left.name).reported() or crash.origin(right.name).reported()
        return CrashCause(
            headline=headline,
            advice=f"the inner sizes {got} and {expects} must be equal: print both shapes where "
            f"they are made{wrong}",
        )
    return CrashCause(
        headline=f"a product of {rows}x{got} and {expects}x{out}",
        advice=f"the inner sizes {got} and {expects} must be equal: check the layer before this "
        "one, or transpose one of the two",
    )


def _features(crash: Crash, layer: LineValue, got: int, expects: int, rows: int) -> CrashCause:
    """A layer that expects another number of features."""
    given = next((t for t in crash.inner if t.name == "input"), None)
    shape = given.shape if given is not None and given.shape else (rows, got)
    headline = f"{layer.label} expects {expects} features and gets {got}"
    made = layer.made.reported()
    came = _made_input(crash, shape)
    if len(shape) > 2 and product(shape[1:]) == expects:
        advice = f"its input is {shown(shape)}: flatten it first, x = x.flatten(1)"
    elif expects in shape[:-1]:
        where = shape.index(expects)
        advice = (
            f"its input is {shown(shape)}, the {expects} features are in dimension {where}: move "
            f"them to the end, x.transpose({where}, -1){came}"
        )
    elif got % expects == 0 and len(shape) == 2 and "flatten" in came and not steps_before(crash):
        advice = (
            f"flattening gives {got} values, {got // expects} times as many: pool more before it, "
            f"or make the layer nn.Linear({got}, …){made}"
        )
    elif mixed := _mixed_samples(crash, shape, expects, came):
        advice = mixed
    elif other := other_input(crash, f"{expects} features", shape, came):
        advice = other
    else:
        advice = (
            f"the input is {shown(shape)}{came}: if that is right, the layer is wrong, make it "
            f"nn.Linear({got}, …){made}; else give it {expects} features"
        )
    return CrashCause(headline=headline, advice=advice)


def _mixed_samples(crash: Crash, shape: tuple[int, ...], expects: int, came: str) -> str:
    """What to do where each sample has the features expected, and the rows are not the samples."""
    samples = len(crash.data.indices or ())
    if len(shape) != 2 or not samples or product(shape) != samples * expects:
        return ""
    return (
        f"the batch has {samples:,} sample{'s' * (samples != 1)} of {expects:,} values each, the "
        f"input {shape[0]:,} rows{came}. Keep one row per sample there, x.flatten(1): a fixed "
        "number of rows fits full batches alone"
    )


def _made_input(crash: Crash, shape: tuple[int, ...]) -> str:
    """The line that made the tensor of this shape, for the end of a phrase."""
    named = crash.tensor(shape)
    origin = crash.origin(named.name) if named is not None else CrashLine(about=CodeLine())
    origin = origin if origin.line else crash.first_origin()
    return f", made at {origin.where}: {origin.quoted[:60]}" if origin.line else ""


def broadcast(crash: Crash) -> CrashCause | None:
    """Two tensors of one operation that cannot be broadcast."""
    found = crash.find(
        r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at "
        r"non-singleton dimension (\d+)"
    )
    if found is None:
        return None
    one, other, dimension = map(int, found.groups())
    tensors = [each for each in crash.operands if each.shape]
    if len(tensors) < 2:
        tensors = [each for each in crash.inner if each.shape]
    if len(tensors) < 2:
        return CrashCause(
            headline=f"sizes {one} and {other} in dimension {dimension} do not fit",
            advice="print the shapes of both tensors of this line; reshape one of them, or make "
            f"the one that is wrong with size {one} instead of {other}",
        )
    left, right = tensors[0], tensors[1]
    headline = f"{left.name} {left.size} and {right.name} {right.size} do not fit"
    lines = "".join(crash.origin(t.name).reported() for t in (left, right))
    if dimension == 0 and len(left.shape or ()) == len(right.shape or ()):
        return CrashCause(
            headline=headline,
            advice=f"dimension 0 has {one} and {other}: {_of_batch(crash, one, other)}, so make "
            f"the tensor with x.shape[0] rows, or drop_last=True in the loader{lines}",
        )
    if _same_but(left.shape or (), right.shape or (), 1) and dimension == 1:
        return CrashCause(
            headline=headline,
            advice=f"channels or features differ, {one} and {other}, all else fits: project one of "
            f"them (a 1x1 convolution or a Linear from {other} to {one}) where it is "
            f"made{lines}",
        )
    if product(left.shape or ()) == product(right.shape or ()):
        return CrashCause(
            headline=headline,
            advice=f"they hold as many values in another shape: use "
            f"{right.name}.reshape({left.name}.shape), or transpose one of them{lines}",
        )
    return CrashCause(
        headline=headline,
        advice=f"dimension {dimension} has {one} and {other}: check the lines that make "
        f"them{lines}, or add a dimension of 1 with unsqueeze",
    )


def _of_batch(crash: Crash, one: int, other: int) -> str:
    """What is known of the batch: its samples were counted where a loader drew them."""
    drawn = len(crash.data.indices or ())
    if drawn and drawn == min(one, other):
        return f"this batch has {drawn} samples, as the last of an epoch may"
    return "where that is the batch, the last one of an epoch is smaller"


def _same_but(one: tuple[int, ...], other: tuple[int, ...], dimension: int) -> bool:
    """Whether two shapes differ in one dimension alone."""
    differ = [i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]]
    return len(one) == len(other) > 1 and differ == [dimension]


def joined(crash: Crash) -> CrashCause | None:
    """``cat`` and ``stack`` of tensors of different shapes, outside a collate function."""
    if crash.phase == "loading":
        return None
    found = crash.find(r"except in dimension (\d+)\. Expected size (\d+) but got size (\d+)")
    if found:
        dimension, one, other = map(int, found.groups())
        return CrashCause(
            headline=f"cat of tensors with sizes {one} and {other}",
            advice=f"all but dimension {dimension} must agree: pad or crop the one with {other} "
            f"to {one}, or join along the dimension that differs{crash.first_origin().reported()}",
        )
    found = crash.find(r"stack expects each tensor to be equal size, but got (.+) at entry 0 and "
                       r"(.+) at entry (\d+)")  # fmt: skip
    if found:
        return CrashCause(
            headline=f"stack of {found[1]} and {found[2]}",
            advice=f"entry {found[3]} has another shape than entry 0: pad them to one length "
            "(torch.nn.utils.rnn.pad_sequence), or join them with torch.cat",
        )
    if crash.find("same number of dimensions: got"):
        return CrashCause(
            headline="cat of tensors with different numbers of dimensions",
            advice="give the smaller one a dimension with unsqueeze, or take one away from the "
            "other with squeeze, before they are joined",
        )
    return None


def channels(crash: Crash) -> CrashCause | None:
    """A convolution that expects another number of channels."""
    found = crash.find(r"weight of size \[(.+?)\], expected input\s?\[(.+?)\] to have (\d+) "
                       r"channels, but got (\d+)")  # fmt: skip
    if found is None:
        return None
    shape, expects, got = numbers(found[2]), int(found[3]), int(found[4])
    module = crash.module
    name, made = (module.label, module.made.reported()) if module else ("the convolution", "")
    headline = f"{name} expects {expects} channels and gets {got}"
    if shape and shape[-1] == expects:
        return CrashCause(
            headline=headline,
            advice=f"the input {shown(shape)} has its channels last: x.permute(0, 3, 1, 2) "
            "before the model, or ToTensor in the dataset",
        )
    if (len(shape) == 3 and expects == shape[0]) or expects in shape[1:]:
        return CrashCause(
            headline=headline,
            advice=f"the input is {shown(shape)}: bring the dimension with {expects} to place 1 "
            "with permute or transpose",
        )
    if other := other_input(crash, f"{expects} channels", shape):
        grey = (
            " (grey images among coloured ones: convert('RGB'))" if (got, expects) == (1, 3) else ""
        )
        return CrashCause(headline=headline, advice=f"{other}{grey}")
    if (got, expects) == (1, 3):
        return CrashCause(
            headline=headline,
            advice=f"grey images: x.repeat(1, 3, 1, 1), or let the layer take one channel{made}",
        )
    return CrashCause(
        headline=headline,
        advice=f"the input is {shown(shape)}: set in_channels={got}{made}, or make the layer "
        f"before it give {expects}",
    )


def dimensions(crash: Crash) -> CrashCause | None:
    """A layer that expects another number of dimensions."""
    found = crash.find(r"[Ee]xpected (\d)D.*? input.*?(?:got input of size: ?\[(.*?)\]|got (\d)D)")
    found = found or crash.find(
        r"Only (\d)D, 4D and 5D input Tensors supported \((got )?(?:got )?(\d)D"
    )
    if found is None:
        return None
    shape = numbers(found[2]) if found[2] else ()
    named = crash.module.label if crash.module else "the layer"
    has = shown(shape) if shape else f"{found[3]} dimensions"
    return CrashCause(
        headline=f"{named} gets an input of {has}",
        advice="it wants batch, channels and then space: add what is missing with unsqueeze "
        "(x.unsqueeze(0) for one sample), and check a flatten or squeeze before it"
        f"{crash.first_origin().reported()}",
    )


def too_small(crash: Crash) -> CrashCause | None:
    """An input that a kernel or a pool no longer fits into."""
    if not crash.find(r"Kernel size can't be greater|Output size is too small"):
        return None
    named = crash.module.label if crash.module else "the layer"
    sizes = crash.find(r"(?:per channel|input size): \((.+?)\)")
    at = f" of {sizes[1]}" if sizes else ""
    return CrashCause(
        headline=f"{named} gets an input{at}, smaller than its window",
        advice="each stride and each pool divides height and width: use larger inputs, fewer pools "
        "or padding; AdaptiveAvgPool2d takes any size",
    )


def viewed(crash: Crash) -> CrashCause | None:
    """``view`` and ``reshape`` to a shape that does not hold as many values."""
    found = crash.find(r"shape '(\[.*?\])' is invalid for input of size (\d+)")
    if found is None:
        return None
    wanted, count = numbers(found[1]), int(found[2])
    source = next((t for t in crash.operands if t.shape and product(t.shape) == count), None)
    of = f" {source.size}" if source is not None else f" with {count} values"
    each = product(source.shape[1:]) if source is not None and source.shape else 0
    per = f"; one sample has {each} values" if each else ""
    made = crash.origin(source.name).reported() if source is not None else ""
    fixed = [size for size in wanted if size > 0]
    return CrashCause(
        headline=f"{source.name if source else 'a tensor'}{of} viewed as {found[1]}",
        advice=f"{product(fixed)} does not divide {count}{per}: use x.flatten(1) and give the next "
        f"layer that many features{made}"
        if -1 in wanted
        else f"the shape holds {product(wanted)} values and the tensor {count}{per}: put -1 for "
        f"the batch (the last one is smaller), or correct the sizes{made}",
    )


def not_contiguous(crash: Crash) -> CrashCause | None:
    """``view`` of a tensor that was transposed."""
    if not crash.find("view size is not compatible with input tensor's size and stride"):
        return None
    origin = crash.first_origin().reported()
    return CrashCause(
        headline="view of a tensor that is not contiguous",
        advice="it was transposed, permuted or sliced before: use .reshape(...) here, or "
        f".contiguous() before .view(...){origin}",
    )


def recurrent(crash: Crash) -> CrashCause | None:
    """Input or state of a recurrent layer."""
    found = crash.find(r"input\.size\(-1\) must be equal to input_size\. Expected (\d+), got (\d+)")
    module = crash.module
    name, made = (module.label, module.made.reported()) if module else ("the recurrent layer", "")
    if found:
        return CrashCause(
            headline=f"{name} expects {found[1]} features and gets {found[2]}",
            advice=other_input(crash, f"{found[1]} features")
            or f"set input_size={found[2]}{made}, or give it {found[1]} in the last dimension",
        )
    found = crash.find(r"Expected hidden(?:\[\d\])? size \((.+?)\), got \[(.+?)\]")
    if found is None:
        return None
    wants, got = numbers(found[1]), numbers(found[2])
    batch = len(wants) == 3 and wants[0] == got[0] and wants[2] == got[2]
    return CrashCause(
        headline=f"state of {name} is {shown(got)}, expected {shown(wants)}",
        advice=f"the state was made for {got[1]} samples and this batch has {wants[1]}: make it "
        "from x.size(0) in every step, or use drop_last=True; without batch_first=True the batch "
        "is dimension 1 of the input"
        if batch
        else f"a state is layers x batch x hidden_size, also with batch_first=True{made}",
    )


def normalised(crash: Crash) -> CrashCause | None:
    """Norm and attention layers made for another size."""
    module = crash.module
    name, made = (module.label, module.made.reported()) if module else ("the layer", "")
    found = crash.find(r"Given normalized_shape=\[(.+?)\].*input of size\s?\[(.+?)\]")
    if found:
        size = numbers(found[2])
        return CrashCause(
            headline=f"{name} normalises {found[1]} features and gets {shown(size)}",
            advice=other_input(crash, found[1], size)
            or f"make it nn.LayerNorm({size[-1]}){made}, or bring the features to the end",
        )
    found = crash.find(r"running_mean should contain (\d+) elements not (\d+)")
    if found:
        return CrashCause(
            headline=f"{name} is made for {found[2]} channels and gets {found[1]}",
            advice=other_input(crash, f"{found[2]} channels")
            or f"set num_features={found[1]}{made}, or correct the layer before it",
        )
    found = crash.find(r"was expecting embedding dimension of (\d+), but got (\d+)")
    if found:
        return CrashCause(
            headline=f"attention is made for {found[1]} features and gets {found[2]}",
            advice=other_input(crash, f"{found[1]} features")
            or f"set embed_dim={found[2]}{made}, or project the input to {found[1]} before it",
        )
    if crash.find(r"must be divisible by num_(heads|groups)"):
        return CrashCause(
            headline=crash.message.split("\n")[0][:80],
            advice="choose a number of heads or groups that divides the number of features"
            f"{crash.place.reported()}",
        )
    return None


def batch_of_loss(crash: Crash) -> CrashCause | None:
    """Another number of predictions than of targets."""
    found = crash.find(r"input batch_size \((\d+)\) to match target batch_size \((\d+)\)")
    if found:
        one, other = int(found[1]), int(found[2])
        line = next((line.reported() for line in lines(crash.data.reshapes) if line.line), "")
        return CrashCause(
            headline=f"{one} predictions for {other} targets",
            advice=f"the batch changed its size on the way{line}: a view(-1, N) with a wrong N "
            "moves values into the batch, use x.flatten(1) and correct the next layer"
            if line
            else "one of the two lost or gained rows on its way: print both shapes where they are "
            "made; a view(-1, N) with a wrong N does that",
        )
    return None


def sizes_of_loss(crash: Crash) -> CrashCause | None:
    """Predictions and targets of two shapes."""
    found = crash.find(r"[Tt]arget size \((.+?)\)\)? .*input size \((.+?)\)")
    if found:
        target, given = numbers(found[1]), numbers(found[2])
        return CrashCause(
            headline=f"predictions {shown(given)} and targets {shown(target)}",
            advice="make them equal: prediction.squeeze(1)"
            if given == (*target, 1)
            else "make them equal: target.unsqueeze(1), or one column of the prediction for each "
            "target (one_hot for class numbers)",
        )
    return None


def many_targets(crash: Crash) -> CrashCause | None:
    """Targets of two dimensions where class numbers are expected."""
    if crash.find("multi-target not supported"):
        targets = [t for t in crash.tensors if t.name == "target"]
        shape = targets[0].size if targets else "of two dimensions"
        return CrashCause(
            headline=f"targets {shape} where one class number per sample is expected",
            advice="use target.squeeze(1), or target.argmax(1) for one-hot rows; class "
            "probabilities must have the shape of the prediction and be float",
        )
    return None


def no_dimension(crash: Crash) -> CrashCause | None:
    """A dimension that a tensor does not have."""
    found = crash.find(
        r"Dimension out of range \(expected to be in range of (\[.+?\]), but got (-?\d+)"
    )
    if found:
        given = next((t for t in crash.operands if t.shape is not None), None)
        has = f"{given.name} is {given.size}" if given else "the tensor has fewer dimensions"
        return CrashCause(
            headline=f"dimension {found[2]} of a tensor that has {found[1]}",
            advice=f"{has}: a squeeze() without argument or a batch of one may have taken one "
            f"away; use squeeze(1), keepdim=True or unsqueeze{crash.first_origin().reported()}",
        )
    return None


def sizes(crash: Crash) -> CrashCause | None:
    """Indexing, expanding and multiplying tensors whose sizes do not fit."""
    patterns = (
        r"expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\)",
        r"output with shape (\[.+?\]) doesn't match the broadcast shape (\[.+?\])",
        r"shape of the mask (\[.+?\]).* indexed tensor (\[.+?\])",
        r"subscript \w+ has size (\d+) for operand \d+ which does not broadcast.* size (\d+)",
        r"first two dimensions of batch2 tensor to be: (\[.+?\]) but got: (\[.+?\])",
    )
    for pattern in patterns:
        if found := crash.find(pattern):
            shapes = ", ".join(f"{t.name} {t.size}" for t in crash.operands if t.shape is not None)
            reported = f": {shapes}" if shapes else ""
            return CrashCause(
                headline=f"sizes {found[1]} and {found[2]} do not fit",
                advice=f"the tensors of this line must agree{reported}; correct the one that is "
                "wrong "
                f"where it is made{crash.first_origin().reported()}",
            )
    return None
