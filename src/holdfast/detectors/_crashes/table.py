"""The verdicts on crashes in the order in which they are asked: the first that knows one has it.

What is particular comes before what is general. Verdicts that read a value of the crash are
functions, by theme; all others are patterns of the message, and stand here.
"""

from __future__ import annotations

from collections.abc import Callable

from . import (
    autograd,
    connections,
    data,
    devices_and_dtypes,
    files,
    indices,
    python_errors,
    recursion,
    settings,
    shapes,
    state,
    state_keys,
    unequal_samples,
    workers,
)
from .facts import Crash, CrashCause
from .pattern import Pattern

DEVICES = (
    devices_and_dtypes.devices,
    devices_and_dtypes.dtypes,
    devices_and_dtypes.class_numbers,
    Pattern(
        says=r"result type (\w+) can't be cast to the desired output type (\w+)"
        r"|Expected floating point type for target with class probabilities"
        r"|Found dtype (\w+) but expected (\w+)|expected scalar type (\w+) but found (\w+)",
        headline="prediction and target have different dtypes",
        advice="use target.float() for regression, BCE and class probabilities, target.long() "
        "for class numbers",
    ),
    Pattern(
        says="could not infer output dtype|only Tensors of floating point|Only Tensors of floating",
        headline="an operation that needs floating point gets whole numbers",
        advice="use x.float() before it; torch.tensor([1, 2]) is int64, torch.tensor([1., 2.]) "
        "is float32",
    ),
    devices_and_dtypes.not_implemented,
    devices_and_dtypes.to_numpy,
    Pattern(
        says="Attempting to deserialize object on (a CUDA|CUDA) device",
        headline="a checkpoint of a GPU is loaded where that GPU is not there",
        advice="pass map_location='cpu' (or device) to torch.load, move the model afterwards",
    ),
    Pattern(
        says="not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available",
        headline="a GPU is asked for and none can be used",
        advice="choose the device once, 'cuda' if torch.cuda.is_available() else 'cpu', "
        "and use it everywhere; with a GPU in the machine check the driver, "
        "CUDA_VISIBLE_DEVICES and that torch is not the CPU build",
    ),
    Pattern(
        says="invalid device ordinal",
        headline="a GPU number that does not exist",
        advice="torch.cuda.device_count() says how many are visible, numbers begin with 0; "
        "CUDA_VISIBLE_DEVICES renumbers them",
    ),
    Pattern(
        says="device-side assert",
        headline="an index out of range on the GPU (device-side assert)",
        advice="mostly a label or token out of range; the line above may be later than the one "
        "that failed: run once with CUDA_LAUNCH_BLOCKING=1 for the right line, or on the CPU "
        "(CUDA_VISIBLE_DEVICES=) for the value and the range",
    ),
    devices_and_dtypes.of_cuda,
)
AUTOGRAD = (
    autograd.overwritten,
    autograd.leaf,
    autograd.second_time,
    autograd.without_graph,
    autograd.not_scalar,
    autograd.to_numpy,
    Pattern(
        says="appears to not have been used in the graph",
        headline="a gradient for a tensor that the output does not depend on",
        advice="pass allow_unused=True to torch.autograd.grad, or check a detach() between the two",
    ),
    Pattern(
        says="Inference tensors cannot be saved for backward",
        headline="a tensor made in inference_mode is used for training",
        advice="use torch.no_grad() there instead of inference_mode, or clone() the tensor",
    ),
    Pattern(
        says="support the deepcopy protocol",
        headline="deepcopy of a tensor with a graph",
        advice="detach() it first; a module that keeps such a tensor as an attribute cannot be "
        "copied, keep it as a buffer",
    ),
    Pattern(
        says="Mismatch in shape: grad_output|attempting to assign a gradient of size",
        headline="a gradient of another shape than its tensor",
        advice="the gradient that is passed or assigned must have the shape of the tensor it "
        "belongs to",
    ),
)
DATA = (
    data.none_sample,
    unequal_samples.bound,
    unequal_samples.unequal,
    data.not_collatable,
    data.missing_key,
    data.one_sample,
    data.empty,
    data.ragged,
    Pattern(
        says=r"can't convert np.ndarray of type numpy.(object_|str_)|too many dimensions 'str'",
        headline="a tensor of texts or mixed objects",
        advice="a column of the table is not numeric: select or encode the columns, then "
        "df.to_numpy(dtype='float32')",
    ),
    Pattern(
        says="stride in the given numpy array is negative",
        headline="a tensor from a flipped array",
        advice="flips and [::-1] leave negative strides: pass array.copy() to torch.from_numpy",
    ),
    data.no_number,
    Pattern(
        says="Sum of input lengths does not equal the length of the input dataset",
        headline="random_split: the parts do not add up to the dataset",
        advice="rounding loses a sample: n = int(0.8 * len(d)); random_split(d, [n, len(d) - "
        "n]), or give fractions, [0.8, 0.2]",
    ),
    Pattern(
        says=r"object of type '\w+' has no len\(\)",
        phase="loading",
        headline="the length of a dataset that has none",
        advice="an IterableDataset has no length: count batches as they come, or add __len__ to it",
    ),
    data.ctc_lengths,
    Pattern(
        says="`lengths` array must be sorted",
        headline="lengths of a packed sequence are not sorted",
        advice="pass enforce_sorted=False to pack_padded_sequence",
    ),
    Pattern(
        says="Length of all samples has to be greater than 0",
        headline="lengths of a packed sequence are not above 0",
        advice="a sample is empty: drop it in the dataset, or keep at least one step of it",
    ),
    data.unpacked,
)
SHAPES = (
    shapes.multiplied,
    shapes.broadcast,
    shapes.joined,
    shapes.channels,
    shapes.dimensions,
    shapes.too_small,
    shapes.viewed,
    shapes.not_contiguous,
    shapes.recurrent,
    shapes.normalised,
    shapes.batch_of_loss,
    shapes.sizes_of_loss,
    Pattern(
        says=r"Expected target size \[(.+?)\], got \[(.+?)\]",
        headline="classes are not in dimension 1 of the prediction",
        advice="cross_entropy wants batch x classes x positions: use "
        "logits.transpose(1, 2), or flatten both: logits.flatten(0, 1), target.flatten()",
    ),
    shapes.many_targets,
    shapes.no_dimension,
    shapes.sizes,
    Pattern(
        says="number of dimensions in the tensor input does not match the length",
        headline="permute with another number of dimensions than the tensor has",
        advice="name every dimension of the tensor once; print its shape before this line, a "
        "dimension may have been squeezed away",
    ),
)
INDICES = (
    indices.label,
    indices.token,
    indices.beyond,
)
STATE = (
    state_keys.keys,
    Pattern(
        says="loaded state dict (contains a parameter group|has a different number)",
        headline="the saved optimizer has other parameters than this one",
        advice="make the optimizer from the same parameters in the same groups as when it was "
        "saved (frozen layers and new heads change them), or do not load its state",
    ),
    state.schedule,
    state.no_parameters,
    Pattern(
        says="some parameters appear in more than one parameter group",
        headline="a parameter is in two groups of the optimizer",
        advice="tied weights or overlapping modules: build the groups from named_parameters() "
        "and put each parameter into one of them",
    ),
    Pattern(
        says="can't optimize a non-leaf Tensor",
        headline="the optimizer is given a computed tensor",
        advice="make it a leaf: torch.nn.Parameter(x), or x.detach().requires_grad_(); "
        ".to(device) of a parameter makes a new tensor, so move it before",
    ),
    state.refused_setting,
    Pattern(
        says=r"(not supported between|bad operand type|unsupported operand|can't multiply)"
        r".*'?str'?",
        library="optim/",
        headline="a setting of the optimizer is a text",
        advice="YAML reads 1e-4 as text (write 1.0e-4), and arguments of a command line are "
        "text: use float(...)",
    ),
    Pattern(
        says=r"ReduceLROnPlateau.step\(\) missing 1 required .*'metrics'",
        headline="ReduceLROnPlateau is stepped without its metric",
        advice="call scheduler.step(val_loss) once per epoch, after the validation",
    ),
    Pattern(
        says="No inf checks were recorded for this optimizer",
        headline="GradScaler finds no gradients of this optimizer",
        advice="scaler.scale(loss).backward() must come before scaler.step(optimizer), and its "
        "parameters must have gradients: check that the loss depends on them",
    ),
    Pattern(
        says=r"unscale_\(\) (has already been called|is being called after step)",
        headline="gradients are unscaled twice",
        advice="call scaler.unscale_(optimizer) once per step and scaler.update() at its end, "
        "also when a step is skipped",
    ),
)
PROCESSES = (
    workers.pickled,
    workers.ended_worker,
    workers.ended_process,
    Pattern(
        says="before the current process has finished its bootstrapping phase",
        headline="workers are started while the script is imported again",
        advice="put the training under if __name__ == '__main__': main(), because a spawned "
        "worker imports the script",
    ),
    Pattern(
        says="Cannot re-initialize CUDA in forked subprocess",
        headline="CUDA is used in a forked process",
        advice="keep tensors of the dataset on the CPU and move batches in the loop; else "
        "multiprocessing_context='spawn' for the loader",
    ),
    Pattern(
        says="unable to open shared memory object|unable to mmap",
        headline="shared memory for a batch could not be opened",
        advice="raise ulimit -n and the container's --shm-size, or "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    Pattern(
        says="DataLoader timed out",
        headline="no batch came within the loader's timeout",
        advice="a worker hangs or is slow: run with num_workers=0, look at locks and network "
        "reads of the dataset, or raise timeout",
    ),
    Pattern(
        says="Default process group has not been initialized",
        headline="a collective is called without a process group",
        advice="call torch.distributed.init_process_group() first and start with torchrun, or "
        "guard the call with torch.distributed.is_initialized()",
    ),
    Pattern(
        says=r"rendezvous: environment variable (\w+) expected, but not set",
        headline="the process group finds no RANK or WORLD_SIZE",
        advice="start the script with torchrun --nproc-per-node N script.py, which sets them",
    ),
    workers.lost_rank,
    workers.nccl,
    workers.unused_parameters,
)
CONNECTIONS = (
    connections.reader,
    connections.lost,
    connections.refused,
    connections.port,
    Pattern(
        says="Max retries exceeded|Name or service not known|HTTP Error|Temporary failure in name "
        "resolution",
        headline="a download failed",
        advice="without a network load from a local path, or fetch once elsewhere (for "
        "Hugging Face: HF_HUB_OFFLINE=1 with a filled cache)",
    ),
)
FILES = (
    files.truncated,
    files.not_only_weights,
    Pattern(
        says="Weights only load failed",
        headline="the file is no checkpoint of torch",
        advice="look at its first bytes: a download page, a Git LFS pointer (git lfs pull) or "
        "another format (.safetensors, .npz) are usual",
    ),
    files.ends_early,
    files.missing,
    files.not_permitted,
    files.too_large,
    files.no_space,
    Pattern(
        says="Too many open files|Errno 24|received 0 items of ancdata",
        headline="too many open files",
        advice="ulimit -n 65535, torch.multiprocessing.set_sharing_strategy('file_system'), "
        "and close files that __getitem__ opens",
    ),
    files.mixed_up,
    files.damaged,
    files.no_input,
    Pattern(
        says="",
        type="EOFError",
        library="multiprocessing",
        headline="the process at the other end of a pipe is gone",
        advice="how it ended is not known here: look at its own output and exit code",
    ),
    files.not_decoded,
)
SETTINGS = (
    Pattern(
        says="prefetch_factor option could only|persistent_workers option needs|timeout option",
        type="ValueError",
        phase="loading",
        headline="a loader option that needs workers",
        advice="set num_workers above 0, or leave prefetch_factor, persistent_workers and "
        "timeout out",
    ),
    Pattern(
        says=r"IterableDataset: expected unspecified (\w+)",
        type="ValueError",
        phase="loading",
        headline="an IterableDataset with a sampler or shuffle",
        advice="it gives its samples in its own order: shuffle inside __iter__ (a buffer), and "
        "leave shuffle and sampler out",
    ),
    settings.loader,
    settings.distribution,
    Pattern(  # torch names all three, whichever it was
        says="probability tensor contains either `inf`, `nan` or element < 0",
        headline="probabilities to draw from are NaN, infinite or below 0",
        advice="which of the three is not said: look at their smallest and largest value "
        "here; logits= takes any finite number, softmax(x, -1) makes probabilities of it",
    ),
    Pattern(
        says="all elements of (input|target) should be between 0 and 1",
        headline="BCELoss gets values outside 0 to 1",
        advice="use BCEWithLogitsLoss on the raw output (or sigmoid before BCELoss), and scale "
        "the targets to 0 to 1",
    ),
    Pattern(
        says="is non-finite, so it cannot be clipped",
        headline="the gradient norm is not finite",
        advice="leave error_if_nonfinite out, holdfast skips such a step and names the line "
        "that makes it",
    ),
    Pattern(
        says=r"a Tensor with (\d+) elements cannot be converted to Scalar",
        headline="item() of a tensor with several values",
        advice="reduce it first, x.mean().item(), or use x.tolist(); a loss made with "
        "reduction='none' has one value per sample",
    ),
    Pattern(
        says="Boolean value of Tensor with more than one value is ambiguous",
        headline="a tensor with several values as a condition",
        advice="say which: (x > 0).all() or .any(); a loss class that is called with its "
        "constructor, nn.MSELoss(a, b), gives this too: nn.MSELoss()(a, b)",
    ),
)
PYTHON = (
    recursion.endless,
    python_errors.memory,
    python_errors.imports,
    python_errors.syntax,
    python_errors.names,
    Pattern(
        says=r"cannot assign \w+ before Module\.__init__\(\) call",
        headline="super().__init__() is missing",
        advice="call super().__init__() in the first line of __init__ of the module",
    ),
    python_errors.attributes,
    python_errors.arguments,
    python_errors.key,
    python_errors.division,
    Pattern(
        says='missing the required "forward"',
        type="NotImplementedError",
        headline="the module has no forward",
        advice="define forward in its class, with this spelling and indented below it; a "
        "ModuleList has none, call its layers in a loop",
    ),
    Pattern(
        says="",
        type="StopIteration",
        headline="next() of an iterator that is at its end",
        advice="make the iterator anew for each epoch: it = iter(loader), or use a for loop",
    ),
    python_errors.assertion,
)

RULES: tuple[Callable[[Crash], CrashCause | None], ...] = (
    *DEVICES, *AUTOGRAD, *DATA, *SHAPES, *INDICES, *STATE, *PROCESSES, *CONNECTIONS, *FILES,
    *SETTINGS, *PYTHON,
)  # fmt: skip
"""All of them, in order."""
