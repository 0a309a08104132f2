"""None from a dataset, samples that make no batch, and batches that are unpacked wrongly."""

from __future__ import annotations

from .facts import Crash, CrashCause


def none_sample(crash: Crash) -> CrashCause | None:
    """A dataset that returned None."""
    none = crash.find(r"found <class 'NoneType'>|but got NoneType")
    if crash.phase != "loading" or not (none or crash.data.nones):
        return None
    named = f" for {crash.sample}" if crash.sample else ""
    return CrashCause(
        headline=f"the dataset returned None{named}",
        advice="a branch of __getitem__ returns nothing, mostly an except that swallows a broken "
        "file: raise there, keep a list of the good samples in __init__, or drop None in a "
        "collate_fn",
    )


def not_collatable(crash: Crash) -> CrashCause | None:
    """A type that the default collate function cannot put together."""
    found = crash.find(r"default_collate: batch must contain .*found <class '(.+?)'>")
    if found is None:
        return None
    advice = "return a tensor from __getitem__ instead, or write a collate_fn for it"
    if "Image" in found[1]:
        advice = "add transforms.ToTensor() (or pil_to_tensor) to the transform of the dataset"
    return CrashCause(headline=f"samples hold {found[1]}, which cannot be batched", advice=advice)


def unpacked(crash: Crash) -> CrashCause | None:
    """A batch or a result that has another number of parts."""
    many = crash.find(r"too many values to unpack \(expected (\d+)\)")
    few = crash.find(r"not enough values to unpack \(expected (\d+), got (\d+)\)")
    found = many or few
    if found is None:
        return None
    value = next(
        (v for v in crash.operands if v.shape or v.type in ("list", "tuple", "dict")), None
    )
    what = f"{value.name} is {value.size if value.shape else value.text}" if value else ""
    loop = crash.place.code.startswith(("for ", "async for "))
    got = f"{few[2]}" if few else "more"
    if loop and not crash.data.over_loader:
        advice = (
            f"what the loop goes over gives {got} parts in each turn: name each of them in the for "
            "statement"
        )
    elif loop:
        advice = (
            f"the loader gives batches with {got} parts, as many as __getitem__ returns: name each "
            "of them in the for statement, or return what the loop expects"
        )
    else:
        advice = (
            f"{what or 'look at what is unpacked'}: name as many parts as there are (nn.LSTM "
            "returns output and a pair of states, a tensor is unpacked along dimension 0)"
        )
    return CrashCause(headline=f"{found[1]} names for {got} values", advice=advice)


def one_sample(crash: Crash) -> CrashCause | None:
    """A norm over a batch of one."""
    found = crash.find(r"Expected more than 1 (value per channel|spatial element) when training, "
                       r"got input size (.*)$")  # fmt: skip
    if found is None:
        return None
    name = crash.module.label if crash.module else "the norm layer"
    size = found[2].replace("torch.Size", "").strip("()")
    if "spatial" in found[1]:
        return CrashCause(
            headline=f"{name} gets one value per channel, input {size}",
            advice="there is nothing to normalise over: use larger inputs or fewer strides before "
            "it, or LayerNorm",
        )
    return CrashCause(
        headline=f"{name} gets a batch of one sample, input {size}",
        advice="mostly the last batch of an epoch: drop_last=True in the training loader; for "
        "predicting one sample call model.eval() first; GroupNorm or LayerNorm take any batch",
    )


def empty(crash: Crash) -> CrashCause | None:
    """A dataset without samples."""
    found = crash.find(r"num_samples should be a positive integer value, but got num_samples=0")
    if found is None:
        return None
    return CrashCause(
        headline="the dataset has 0 samples",
        advice="its list of files or rows is empty: check the folder, the pattern and the split it "
        f"is made from{crash.first_origin().reported()}",
    )


def ragged(crash: Crash) -> CrashCause | None:
    """Data that no tensor can be made of."""
    if crash.find(r"expected sequence of length \d+ at dim \d+|inhomogeneous shape"):
        return CrashCause(
            headline="a tensor of lists of different lengths",
            advice="pad them to one length first (torch.nn.utils.rnn.pad_sequence), or keep a "
            f"list of tensors{crash.first_origin().reported()}",
        )
    return None


def no_number(crash: Crash) -> CrashCause | None:
    """A text where a number should be."""
    found = crash.find(r"could not convert string to float: (.*)")
    if found:
        return CrashCause(
            headline=f"{found[1][:60]} is no number",
            advice="a text stands where a number should: an argument, a header line or a cell of a "
            f"table{crash.first_origin().reported()}; skip or clean it where it is read",
        )
    return None


def ctc_lengths(crash: Crash) -> CrashCause | None:
    """Lengths that are given to a CTC loss."""
    found = crash.find(r"(Expected input_lengths to have value at most|Expected tensor to have "
                       r"size at least) (\d+).*but got (?:value|size) (\d+)")  # fmt: skip
    if found and "ctc" in crash.message:
        return CrashCause(
            headline=f"ctc_loss: a length of {max(int(found[2]), int(found[3]))} where "
            f"{min(int(found[2]), int(found[3]))} are there",
            advice="input_lengths count frames after the strides of the model, target_lengths "
            "symbols of each padded row: compute both from the tensors that are passed",
        )
    return None


def missing_key(crash: Crash) -> CrashCause | None:
    """A key that one of the samples does not have."""
    if crash.type != "KeyError" or crash.phase != "loading":
        return None
    if crash.inner_function not in ("collate", "<dictcomp>", "<listcomp>"):
        return None
    return CrashCause(
        headline=f"a sample of the batch has no {crash.message}",
        advice="every sample must have the same keys: add the key in __getitem__ for all of "
        "them, or in none",
    )
