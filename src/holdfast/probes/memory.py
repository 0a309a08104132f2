"""Counters of the CUDA caching allocator."""

from __future__ import annotations

import torch

COLUMNS = {
    "mem_allocated": "bytes in live tensors on the device; sampled",
    "mem_reserved": "bytes the allocator holds from the driver; sampled",
}


class Memory:
    """Reads the allocator: building its table costs 130 microseconds, so not on every step."""

    def read(self, device: torch.device, row: dict[str, float]) -> None:
        """Add the columns, where there is such an allocator."""
        if device.type != "cuda":
            return
        stats = torch.cuda.memory_stats(device)
        row["mem_allocated"] = float(stats.get("allocated_bytes.all.current", 0))
        row["mem_reserved"] = float(stats.get("reserved_bytes.all.current", 0))
