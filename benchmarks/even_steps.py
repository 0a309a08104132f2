"""How even steps of small operations are beside the thread that judges a run in library use.

python benchmarks/even_steps.py                                  # as it is
python benchmarks/even_steps.py --piece 0.0005 --asleep 0.5      # other pieces, other sleep
python benchmarks/even_steps.py --alone                          # the thread does nothing
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from overhead import hardware

import holdfast
from holdfast.launcher import drain_thread

WARM = 300


def main() -> int:
    parser = argparse.ArgumentParser(description="Evenness of steps in library use.")
    parser.add_argument("--operations", type=int, default=500, help="of a step, some 20 µs each")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--piece", type=float, default=drain_thread._PIECE, help="seconds")
    parser.add_argument("--asleep", type=float, default=drain_thread._ASLEEP, help="seconds")
    parser.add_argument("--alone", action="store_true", help="without the thread")
    args = parser.parse_args()
    drain_thread._PIECE, drain_thread._ASLEEP = args.piece, args.asleep
    if args.alone:
        quiet: Any = lambda self: self._stop.wait()  # noqa: E731
        drain_thread.DrainThread._loop = quiet
    torch.set_num_threads(1)
    layer, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        watch = holdfast.watch(layer, optimizer, run_dir=Path(folder) / "run", quiet=True)
        for _ in range(WARM + args.steps):
            began, y = time.perf_counter(), x
            for _ in range(args.operations):
                y = torch.tanh(layer(y)).detach()
            watch.backward(layer(y).square().mean())
            watch.step()
            took.append(1000 * (time.perf_counter() - began))
        watch.close()
    took = sorted(took[WARM:])
    usual = statistics.median(took)
    near = statistics.fmean(abs(one / usual - 1) <= 0.1 for one in took)
    p90, p99 = (took[len(took) * share // 100] for share in (90, 99))
    print(hardware(), " ".join(sys.argv[1:]))
    print(f"{near:.0%} within 10 % of {usual:.1f} ms; p90 {p90:.1f}, p99 {p99:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
