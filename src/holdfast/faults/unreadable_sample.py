"""One file of the training data was cut off while it was copied.

The script ends on the batch that holds it, which is another one in every epoch and on every seed.
"""

import struct
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CODE = "RUN003"
FIRST_STEP = 4
LINE_OF = 'values = struct.unpack("6f", self.files[index].read_bytes())'


class Files(Dataset[torch.Tensor]):
    """Six numbers in each file."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        values = struct.unpack("6f", self.files[index].read_bytes())
        return torch.tensor(values)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.bin" for number in range(64)]
        for file in files:
            file.write_bytes(struct.pack("6f", *torch.randn(6).tolist()))
        files[40].write_bytes(files[40].read_bytes()[:10])
        loader = DataLoader(Files(files), batch_size=8, shuffle=True)
        model = nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss = torch.tensor(0.0)
        for _ in range(3):
            for batch in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(batch[:, :5]), batch[:, 5:])
                loss.backward()
                optimizer.step()
        print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
