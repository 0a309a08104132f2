"""A seeded grammar of sentence pairs: a scene, and a more general statement that follows.

    "A young man in a red shirt is riding a bicycle on a busy city street."
    "A person moves on wheels in town."

Twenty subjects, eight details, 24 activities and 16 places make 61 440 premises; ten general
subjects, twenty general activities and 13 general places make 2 600 targets. Details leave no
trace in the target. Half of the places are indoors: the task ``conditional`` keeps the rewrite
there and negates it elsewhere, so that the verb depends on activity and place together.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from holdfast import HoldfastError

from .text_pairs import TextPair

GrammarTask = Literal["rewrite", "conditional"]
"""``rewrite``: always the general statement; ``conditional``: outdoors, its negation."""


class Activity(NamedTuple):
    """Something a subject does, and what it is in general."""

    premise: str
    general: str
    plain: str  # the general verb after "does not"


class Where(NamedTuple):
    """A place, what it is in general, and whether it has a roof."""

    premise: str
    general: str
    indoors: bool


SUBJECTS = (
    ("A young man", "A person"), ("A tall woman", "A person"),
    ("A little girl", "A child"), ("A small boy", "A child"),
    ("An old farmer", "A worker"), ("A bearded carpenter", "A worker"),
    ("A friendly nurse", "A medic"), ("A tired surgeon", "A medic"),
    ("A famous guitarist", "A musician"), ("A loud drummer", "A musician"),
    ("A strong swimmer", "An athlete"), ("A football player", "An athlete"),
    ("A police officer", "An official"), ("A brave firefighter", "An official"),
    ("A patient teacher", "An educator"), ("A retired professor", "An educator"),
    ("A cheerful baker", "A cook"), ("A busy chef", "A cook"),
    ("A curious tourist", "A traveller"), ("A lonely hiker", "A traveller"),
)  # fmt: skip
"""Subject and hypernym."""

DETAILS = (
    "in a red shirt", "in a blue jacket", "in a yellow raincoat", "in muddy boots",
    "with a green hat", "with dark glasses", "with short hair", "with a heavy backpack",
)  # fmt: skip

ACTIVITIES = (
    Activity("riding a bicycle", "moves on wheels", "move on wheels"),
    Activity("riding a skateboard", "moves on wheels", "move on wheels"),
    Activity("reading a newspaper", "reads something", "read something"),
    Activity("reading a long novel", "reads something", "read something"),
    Activity("playing chess", "plays a game", "play a game"),
    Activity("playing cards", "plays a game", "play a game"),
    Activity("eating an apple", "consumes food", "consume food"),
    Activity("eating a sandwich", "consumes food", "consume food"),
    Activity("running fast", "hurries", "hurry"),
    Activity("strolling around", "goes on foot", "go on foot"),
    Activity("drinking hot coffee", "has a beverage", "have a beverage"),
    Activity("talking on a phone", "converses", "converse"),
    Activity("writing a letter", "composes a message", "compose a message"),
    Activity("singing a song", "uses the voice", "use the voice"),
    Activity("playing the violin", "makes music", "make music"),
    Activity("taking photographs", "records pictures", "record pictures"),
    Activity("painting a portrait", "creates art", "create art"),
    Activity("carrying a wooden box", "transports an object", "transport an object"),
    Activity("sleeping deeply", "rests", "rest"),
    Activity("lifting weights", "exercises", "exercise"),
    Activity("sweeping the floor", "cleans up", "clean up"),
    Activity("repairing a radio", "fixes a device", "fix a device"),
    Activity("feeding a kitten", "cares for an animal", "care for an animal"),
    Activity("solving a puzzle", "thinks hard", "think hard"),
)

PLACES = (
    Where("on a busy city street", "in town", False),
    Where("in a crowded market square", "in town", False),
    Where("on a sandy beach", "by the water", False),
    Where("beside a calm lake", "by the water", False),
    Where("in a quiet park", "on the grass", False),
    Where("in a dense forest", "among trees", False),
    Where("on a snowy mountain", "at high altitude", False),
    Where("in a golden wheat field", "on farmland", False),
    Where("in a tiny kitchen", "at home", True),
    Where("in a bright living room", "at home", True),
    Where("in a modern office", "at work", True),
    Where("in a noisy factory", "in industry", True),
    Where("in a public library", "near books", True),
    Where("in an art museum", "at an exhibition", True),
    Where("in a village classroom", "at school", True),
    Where("in a hotel lobby", "in lodgings", True),
)

PREMISES = len(SUBJECTS) * len(DETAILS) * len(ACTIVITIES) * len(PLACES)
"""How many premises there are: 61 440."""


class Scene(NamedTuple):
    """One premise, as four numbers into the tables above.

    >>> scene(0).premise
    'A young man in a red shirt is riding a bicycle on a busy city street.'
    >>> scene(0).target("rewrite"), scene(0).target("conditional")
    ('A person moves on wheels in town.', 'A person does not move on wheels in town.')
    """

    subject: int
    detail: int
    activity: int
    place: int

    @property
    def premise(self) -> str:
        """The sentence that is read."""
        activity, place = ACTIVITIES[self.activity].premise, PLACES[self.place].premise
        return f"{SUBJECTS[self.subject][0]} {DETAILS[self.detail]} is {activity} {place}."

    def target(self, task: GrammarTask) -> str:
        """The sentence it is to become."""
        activity, place = ACTIVITIES[self.activity], PLACES[self.place]
        negated = task == "conditional" and not place.indoors
        verb = f"does not {activity.plain}" if negated else activity.general
        return f"{SUBJECTS[self.subject][1]} {verb} {place.general}."


def scene(number: int) -> Scene:
    """The premise with this number, from 0 up to ``PREMISES - 1``."""
    if not 0 <= number < PREMISES:
        raise HoldfastError(
            f"grammar: no premise {number}; they are numbered from 0 to {PREMISES - 1}"
        )
    number, place = divmod(number, len(PLACES))
    number, activity = divmod(number, len(ACTIVITIES))
    subject, detail = divmod(number, len(DETAILS))
    return Scene(subject, detail, activity, place)


def pairs(count: int, seed: int, task: GrammarTask = "rewrite") -> list[TextPair]:
    """Draw different premises with their targets; a larger count begins with the smaller one's.

    Args:
        count: how many, at most ``PREMISES``.
        seed: which ones, and in which order.
        task: what the target is.
    """
    if not 1 <= count <= PREMISES:
        raise HoldfastError(
            f"grammar: {count} pairs asked for; it makes from 1 to {PREMISES} different ones"
        )
    # The raw stream of Philox is fixed for good; what numpy makes of it may change.
    drawn = np.random.Philox(key=seed).random_raw(PREMISES)
    return [_pair(scene(int(n)), task) for n in np.argsort(drawn, kind="stable")[:count]]


def _pair(found: Scene, task: GrammarTask) -> TextPair:
    meta = {"source": "grammar", "task": task, **found._asdict()}
    return TextPair(found.premise, found.target(task), meta)
