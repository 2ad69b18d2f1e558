"""Saving 20 GiB that four GPUs hold, beside torch.distributed.checkpoint in the same run: `save_20gib_4gpu`, `async_20gib_4gpu`.

Ours writes a shard per process, fsynced and committed, or leaves it in memory (the first call left out for both). The example
`checkpoint_speed` must be built with `--features cuda`. ENN_BENCH_FOLDER (below target) is where files go.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from _record import ROOT, record
from checkpoint import gone, ours, peer, require, saved

GPUS = 4
BYTES = 20 << 30
TENSORS = 64
ROUNDS = 3


def main():
    require()
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ") if os.path.exists("/dev/nvidiactl") else 0
    if listed < GPUS:
        print(f"needs {GPUS} GPUs, found {listed}")
        sys.exit(77)
    times = {"ours": [], "dcp": [], "stage": [], "async": []}
    with tempfile.TemporaryDirectory(dir=os.environ.get("ENN_BENCH_FOLDER", ROOT / "target")) as folder:
        folder = pathlib.Path(folder)
        a, b = ours(GPUS, TENSORS, BYTES, ["cuda"]), peer(GPUS, TENSORS, BYTES, ["cuda"])
        a.all("prepare")
        a.all("stage")
        b.all(f"async {folder}/dcp")
        gone(folder / "dcp")
        for _ in range(ROUNDS):
            times["ours"].append(saved(a, folder))
            gone(folder / "step-00000001")
            times["dcp"].append(b.all(f"save {folder}/dcp"))
            gone(folder / "dcp")
            times["stage"].append(a.all("stage"))
            times["async"].append(b.all(f"async {folder}/dcp"))
            gone(folder / "dcp")
        a.end()
        b.end()
    ok = record("save_20gib_4gpu", "s", "lower", times["ours"], times["dcp"], "dcp.save, 4 processes", 2.3)
    ok = record("async_20gib_4gpu", "s", "lower", times["stage"], times["async"], "dcp.async_save, 4 processes", 1.8) and ok
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
