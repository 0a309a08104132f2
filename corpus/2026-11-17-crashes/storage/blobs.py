"""A tiny blob store: objects are written in blocks, like the bucket client on the cluster."""
import io
from pathlib import Path

import torch

BLOCK = 4096


class BlobStore:
    def __init__(self, root):
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True)

    def put(self, name, data):
        view = memoryview(data)
        with open(self.root / name, "wb") as handle:
            for block in range(len(view) // BLOCK):
                handle.write(view[block * BLOCK : (block + 1) * BLOCK])
        return len(view)

    def put_state(self, name, state):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return self.put(name, buffer.getvalue())

    def get_state(self, name):
        return torch.load(self.root / name, map_location="cpu")
