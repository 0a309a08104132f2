"""A fresh store for every life of the ranks.

torchrun keeps one store for all its restarts. A restarted rank that asks there where the others
listen may be told where their former lives did, and waits for the dead (gloo: ``Connection
refused``, nccl: a hang). The number of restarts does not tell lives apart, because nodes count
for themselves. So the ranks greet each other first, each with a word of its own that no former
life can have answered, and agree on a name under which everything after that is kept.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

from torch.distributed import DistStoreError, PrefixStore, Store, TCPStore

_PAUSE = 0.02


def fresh_store(rank: int, world: int, patience: timedelta) -> Store | None:
    """The store of this life; None where the launcher makes one for every life itself."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, world, is_master=False, timeout=patience)
    return PrefixStore(greeted(store, rank, world, patience), store)


def greeted(store: Store, rank: int, world: int, patience: timedelta) -> str:
    """A name that all ranks that live now agree on, and none that lived before.

    Args:
        store: which may hold what former lives have left.
        rank: of this process.
        world: how many there are.
        patience: how long to wait for the others; ``DistStoreError`` then.
    """
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"hello/{rank}", own)
        store.wait([f"welcome/{own}"], patience)
        name = store.get(f"welcome/{own}").decode()
        store.set(f"joined/{name}/{rank}", "")
        return name
    until = time.monotonic() + patience.total_seconds()
    heard: dict[int, str] = {}
    missing = set(range(1, world))
    while missing:
        for other in sorted(missing):
            if store.check([f"joined/{own}/{other}"]):
                missing.remove(other)
            elif store.check([f"hello/{other}"]):
                word = store.get(f"hello/{other}").decode()
                # One of a former life may stand there until the rank itself comes.
                if heard.get(other) != word:
                    heard[other] = word
                    store.set(f"welcome/{word}", own)
        if time.monotonic() > until:
            raise DistStoreError(f"ranks {sorted(missing)} of {world} have not come")
        time.sleep(_PAUSE if missing else 0)
    return own
