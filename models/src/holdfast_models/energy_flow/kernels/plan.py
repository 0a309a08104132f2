"""Sizes and behaviour of one run of the fused loop, and how its kernels are cut into blocks.

N flows, C carrier width, L layers, T lattice steps, H hidden width of the neuron, o its output,
A width of the merged heads, U columns that layer 0 reads (H answers, the energy, zeros),
P slots: programs of a kernel that each keep a number or a sum of their own.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..model.settings import ConvergenceSettings
from ..model.stepping import Parts

__all__ = ["HEADS_TILE", "TILE", "BlockSizes", "KernelPlan", "plan_for", "saved_bytes", "slots"]

TILE = 512
"""Most columns of a gate that one program looks at."""

HEADS_TILE = 64
"""Columns of the heads that a program has at a time; half of them for movement in backward."""

_PAD = 64
_SMALL = (
    4 * (3 + 1 + 8 + 3) + 1
)  # position, energy, slopes, noise, alive: bytes of a flow in a step


class BlockSizes(NamedTuple):
    """How the kernels are cut: what a search found fastest on an H200, at C = 512 and C = 1024."""

    neuron_rows: int = 64  # of a neuron with 32 units
    neuron_warps: int = 4
    neuron_back_rows: int = 16
    neuron_back_warps: int = 1
    gates_block: int = 2048  # numbers of a gate in a program
    gates_warps: int = 4
    gates_back_block: int = 512
    gates_back_warps: int = 2
    gates_programs: int = 1056
    heads_rows: int = 32
    heads_warps: int = 4
    heads_back_rows: int = 8
    heads_back_warps: int = 1
    heads_programs: int = 2112


class KernelPlan(NamedTuple):
    """All that holds for a run; plain numbers, so that a plan can name a captured graph."""

    steps: int
    layers: int
    hidden: int  # C
    neuron: int  # H
    answer: int  # o
    inputs: int  # U
    split: tuple[int, int]  # of the heads
    energy: Literal["residual", "tanh"]
    bound: Literal["tanh", "clamp"]
    drift: float
    reflect: bool
    clip: float
    convergence: ConvergenceSettings
    blocks: BlockSizes | None = None  # None: plain torch, which needs one slot for each sum

    @property
    def row(self) -> int:
        """Columns of a row of states."""
        return self.inputs + self.layers * self.hidden

    @property
    def heads(self) -> int:
        """Columns of the merged heads, A."""
        return sum(self.split)


def plan_for(parts: Parts, steps: int, blocks: BlockSizes | None = None) -> KernelPlan:
    """The plan of a run of these parts."""
    settings = parts.settings
    carrier = settings.carrier
    return KernelPlan(
        steps=steps,
        layers=carrier.layers,
        hidden=carrier.hidden,
        neuron=carrier.neuron_hidden,
        answer=carrier.neuron_output,
        inputs=-(-(carrier.neuron_hidden + 1) // _PAD) * _PAD,
        split=parts.carrier.split,
        energy=carrier.energy,
        bound=carrier.bound,
        drift=settings.z_drift,
        reflect=settings.flows.reflect,
        clip=carrier.input_clip,
        convergence=settings.convergence,
        blocks=blocks,
    )


def saved_bytes(plan: KernelPlan, itemsize: int) -> int:
    """What one flow leaves behind for backward, in all steps."""
    wide = plan.row + 4 * plan.layers * plan.hidden + plan.heads
    return plan.steps * (wide * itemsize + _SMALL)


def slots(kind: str, flows: int, plan: KernelPlan) -> int:
    """How many programs of a kernel keep something of their own, P.

    Args:
        kind: "neuron", "gates" and "heads" of the forward pass, the same with "_sums" of backward.
        flows: N.
        plan: of the run.
    """
    blocks = plan.blocks
    if blocks is None:
        return 1
    columns = tile(plan.hidden)
    across = -(-plan.hidden // columns)
    if kind == "neuron":
        return -(-flows // neuron_tile(blocks.neuron_rows, plan.neuron))
    if kind == "neuron_sums":
        return -(-flows // neuron_tile(blocks.neuron_back_rows, plan.neuron))
    if kind == "gates":
        return -(-flows // rows_of(blocks.gates_block, columns)) * across
    if kind == "gates_sums":
        rows = rows_of(blocks.gates_back_block, columns)
        return min(max(1, blocks.gates_programs // across), -(-flows // rows))
    if kind == "heads":
        return -(-flows // blocks.heads_rows)
    across = heads_groups(plan.split)
    return min(max(1, blocks.heads_programs // across), -(-flows // blocks.heads_back_rows))


def tile(hidden: int) -> int:
    """Columns of a program of the gates: the next power of two, up to ``TILE``."""
    return min(TILE, 1 << (hidden - 1).bit_length())


def heads_groups(split: tuple[int, int]) -> int:
    """Programs beside each other in the heads' backward pass."""
    return -(-split[0] // HEADS_TILE) + -(-split[1] // (HEADS_TILE // 2))


def neuron_tile(rows: int, units: int) -> int:
    """Rows of a program of the neuron: fewer where it has more than 32 units."""
    return max(16, rows * 32 // max(32, units))


def rows_of(block: int, columns: int) -> int:
    """Rows of a block of so many numbers."""
    return max(1, block // columns)
