"""Saving 20 GiB that GPUs hold, beside torch.distributed.checkpoint in the same run.

    gpu_checkpoint.py [--gpus 4] [--gib 20] [--rounds 3] [--no-peer]

    save_20gib_4gpu       a shard per process, fsynced and committed; dcp.save
    async_20gib_4gpu      how long training stands still, the first call left out for both; dcp.async_save
    blocked_20gib_4gpu    the same beside the limit of 50 ms: the GPU copies beside the next step, which pauses before it changes the state

With another number of GPUs or bytes the names say so. The example `checkpoint_speed` is the one of `make cuda`'s folder, or
ENN_CHECKPOINT_SPEED (`cargo build --release --target-dir target/cuda -p enn-worker --features cuda --example checkpoint_speed`); ENN_PYTHON
has PyTorch 2.11 with CUDA, whose libraries both use. ENN_BENCH_FOLDER (below target) is where files go, e.g. /dev/shm. Memory of the host:
the bytes once for ours, and what dcp takes, about twice the bytes.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import _steps as steps
from _record import ROOT, record
from checkpoint import Side, gone, peer, saved

TENSORS = 64
BLOCKED_MAX_MS = 50.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--gib", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true", help="ours only: no ratio, and the limit of the blocked time")
    return parser.parse_args()


def require(gpus):
    """The example, where there are so many GPUs."""
    example = pathlib.Path(os.environ.get("ENN_CHECKPOINT_SPEED") or steps.binary("examples", "cuda") / "checkpoint_speed")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ") if os.path.exists("/dev/nvidiactl") else 0
    if listed < gpus or not example.exists():
        print(f"needs {gpus} GPUs, found {listed}; needs {example}")
        sys.exit(77)
    return example


def main():
    asked = arguments()
    example, size = require(asked.gpus), asked.gib << 30
    shape = [str(asked.gpus), str(size), str(TENSORS), "cuda"]
    times = {"ours": [], "dcp": [], "stage": [], "arrive": [], "async": []}
    with tempfile.TemporaryDirectory(dir=os.environ.get("ENN_BENCH_FOLDER", ROOT / "target")) as folder:
        folder = pathlib.Path(folder)
        a = Side(lambda rank: [str(example), str(rank), *shape], steps.library_environment("cuda"), asked.gpus)
        b = None if asked.no_peer else peer(asked.gpus, TENSORS, size, ["cuda"])
        a.all("prepare")
        first = a.all("stage")
        print(f"first call: {first:.3f} s, all there {a.all('arrive'):.3f} s later", flush=True)
        if b:
            print(f"first call of dcp.async_save: {b.all(f'async {folder}/dcp'):.3f} s", flush=True)
            gone(folder / "dcp")
        for _ in range(asked.rounds):
            times["stage"].append(a.all("stage"))
            times["arrive"].append(a.all("arrive"))
            times["ours"].append(saved(a, folder))
            gone(folder / "step-00000001")
            if b:
                times["dcp"].append(b.all(f"save {folder}/dcp"))
                gone(folder / "dcp")
                times["async"].append(b.all(f"async {folder}/dcp"))
                gone(folder / "dcp")
            print({name: [round(seconds, 4) for seconds in found] for name, found in times.items()}, flush=True)
        a.end()
        if b:
            b.end()
    what, processes = f"{asked.gib}gib_{asked.gpus}gpu", f"{asked.gpus} processes"
    there = {"there_after_s": [one + other for one, other in zip(times["stage"], times["arrive"])]}
    blocked = [seconds * 1e3 for seconds in times["stage"]]
    ok = record(f"blocked_{what}", "ms", "lower", blocked, [BLOCKED_MAX_MS], "limit", 1.0, there)
    if b:
        ok = record(f"save_{what}", "s", "lower", times["ours"], times["dcp"], f"dcp.save, {processes}", 2.3) and ok
        ok = record(f"async_{what}", "s", "lower", times["stage"], times["async"], f"dcp.async_save, {processes}", 1.8) and ok
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
