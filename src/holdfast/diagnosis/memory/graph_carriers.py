"""Which variable carries the graphs of earlier steps into the next one.

A look finds tensors whose graphs reach far back. All names that hang on a graph at that moment are
noted by the numbers of their nodes; one step later, the new graphs and the new loss show which of
them they were made of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import FrameType

from torch import Tensor

from ...records.memory import GraphChain
from . import growth_facts
from .graphs import reach
from .references import Held, walk
from .value_sizes import Chained, Timeline, ValueSizes, graph_names

_SECOND_TIME = ("through the graph a second time", "modified by an inplace operation")
# Steps whose losses are asked whether they lead into the step before: an error may end them soon.
EARLY = 3


@dataclass(slots=True)
class GraphCarrier:
    """The variable that carries graphs from step to step."""

    held: Held
    record: GraphChain


class GraphCarriers:
    """The question of one step, and its answer at the end of the next."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._named: dict[int, Held] | None = None
        self.suspected: list[Chained] = []
        """Whose carrier is asked for."""
        self._fed: list[int] = []

    @property
    def waiting(self) -> bool:
        """Whether the next step will have the answer."""
        return self._named is not None

    def ask(self, value_sizes: ValueSizes, suspected: list[Chained]) -> None:
        """Note who could carry the graphs of ``suspected`` on."""
        self._named, self.suspected, self._fed = graph_names(value_sizes.found), suspected, []

    def backward(self, loss: Tensor) -> None:
        """A loss whose graph may lead into earlier steps."""
        self._fed = reach(loss.grad_fn, self._timeline.before(1)).entries

    def answer(self, value_sizes: ValueSizes, frame: FrameType, step: int) -> GraphCarrier | None:
        """The carrier as it is now: how far it reaches back, and whether it leads into the loss."""
        named, self._named = self._named or {}, None
        suspected, self.suspected = self.suspected, []
        value_sizes.look(frame, step)
        before = self._timeline.before(2)
        votes: dict[str, int] = {}
        now: dict[str, Held] = {}
        for number, held in graph_names(value_sizes.found).items():
            now[held.identity] = held
            for entry in reach(held.value.grad_fn, before).entries:
                if entry in named and number >= before:
                    identity = named[entry].identity
                    votes[identity] = votes.get(identity, 0) + 1
        chains = {chain.held.identity: chain for chain in suspected}
        fed = [named[entry].identity for entry in self._fed if entry in named]
        likely = fed or sorted(votes, key=lambda identity: (-votes[identity], identity))
        # What only came from the last step is not what carries the steps before it.
        for identity in [i for i in likely if i in chains] or likely or list(chains):
            if identity in now:
                held, known = now[identity], chains.get(identity, suspected[0])
                age, depth = known.age + 1, known.depth + 1
                record = growth_facts.of_chain(held, age, fed=bool(self._fed), depth=depth)
                return GraphCarrier(held, record)
        return None


class EarlyStates:
    """Which variable the losses of the first steps lead through into the step before."""

    def __init__(self) -> None:
        self.names: dict[int, Held] = {}
        """The named tensors of the last step that hang on a graph, while the next loss is due."""
        self._carrier: Held | None = None

    def survived(self) -> None:
        """An optimizer has stepped: no loss before it has ended the run."""
        self._carrier = None

    def step_ended(self, frame: FrameType, optimizers: int) -> None:
        """A step is over: note the names that the next loss may lead to, and keep no tensor.

        With optimizers that take turns the next loss is the other's: what it leads to was made in
        this turn of the loop, and nothing carried it on.
        """
        if optimizers <= 1:
            named = graph_names(walk(frame))
            self.names = {n: replace(h, owner=None, value=None) for n, h in named.items()}

    def backward(self, loss: Tensor, timeline: Timeline) -> None:
        """One of the first losses: does it lead into the step before?"""
        for entry in reach(loss.grad_fn, timeline.before(1)).entries:
            self._carrier = self.names.get(entry, self._carrier)
        self.names = {}

    def met(self, died: BaseException | None) -> GraphChain | None:
        """The state that was on the graph of an earlier step when backward met that graph."""
        held = self._carrier
        met = isinstance(died, RuntimeError) and any(w in str(died) for w in _SECOND_TIME)
        if not met or held is None:
            return None
        line = growth_facts.of_line(held, [])
        return growth_facts.of_chain(held, 1, fed=True, line=line).replace(killed=True)
