"""One training process of the eager peer: reads a staged directory and a configuration, trains, prints the median step in milliseconds.

Usage: _eager_step.py CONFIG STAGED THREADS STEPS
"""

import json
import pathlib
import statistics
import sys
import time
import tomllib

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance" / "peers"))
from staged import Rows, descend, fused_adamw  # noqa: E402

WARM_UP = 10


def main() -> None:
    """Trains as worker/src/session does: Huber on z plus λ on the base, clip, AdamW in two groups, EMA."""
    config = tomllib.loads(pathlib.Path(sys.argv[1]).read_text())
    torch.set_num_threads(int(sys.argv[3]))
    torch.manual_seed(0)
    rows = Rows(pathlib.Path(sys.argv[2]))
    model = rows.model(config["model"])
    optimizer = fused_adamw(model, config["train"])
    average = [p.detach().clone() for p in model.parameters()]
    batch, times = config["train"]["batch"], []
    for _ in range(int(sys.argv[4]) + WARM_UP):
        start = time.perf_counter()
        descend(model, optimizer, average, rows.loss(model, torch.randint(len(rows), (batch,))))
        times.append(1000 * (time.perf_counter() - start))
    print(json.dumps({"ms": statistics.median(times[WARM_UP:]), "parameters": sum(p.numel() for p in model.parameters())}))


if __name__ == "__main__":
    main()
