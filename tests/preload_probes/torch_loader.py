"""Loads data with worker processes, forked and spawned, and with the seeds that they get."""

import torch
from torch.utils.data import DataLoader, Dataset

import seen


class Squares(Dataset):
    """A hundred numbers, each with a random one of its worker."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return index * index, torch.rand(1).item()


def main():
    """Runs each way of starting workers."""
    for method in ("fork", "spawn", "forkserver"):
        torch.manual_seed(5)
        loader = DataLoader(Squares(), batch_size=25, shuffle=True, num_workers=2, multiprocessing_context=method,
                            persistent_workers=method == "fork")
        for _ in range(2):
            for squares, random in loader:
                seen.show(method, (squares.sum().item(), round(random.sum().item(), 5)))


if __name__ == "__main__":
    main()
