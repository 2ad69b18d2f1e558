"""shared_data_memory: how much the memory of all workers grows per added worker, as a share of the staged data.

Ours: workers map the staged arrays read-only, so added workers share the pages. Peer: what a DataLoader-less PyTorch script does, each process loading
the arrays with numpy.load. Measured as the sum of proportional set sizes (PSS) after one epoch, less the same run on tiny data, so that what libtorch itself
takes does not count. Needs ENN_PYTHON with numpy.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import _record as record
import _smallest as smallest

ROWS, WIDTH, ROWS_TINY = 150_000, 512, 2_000
WORKERS = 3
WAIT_S = 180

CONFIG = """
name = "memory"
seed = 1
[data]
files = ["{data}"]
[data.arrays]
x = "x"
y = "y"
[data.split]
kind = "chronological"
val = 0.02
test = 0.0
{model}
patch = [1]
[train]
epochs = 1000
batch = 1024
checkpoint_every = 1000
"""

MAKE = """
import sys, numpy as np
path, rows, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(0)
x = rng.random((rows, width), dtype=np.float32)
np.savez(path, x=x, y=x[:, :4].copy())
"""

PEER = """
import sys, time, numpy as np
data = np.load(sys.argv[1])
x, y = data["x"], data["y"]
print(float(x.sum()), flush=True)
sys.stdin.read()
"""


def pss_mib(pid: int) -> float:
    """Proportional set size of a process, MiB."""
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+) kB", text, re.M).group(1)) / 1024


def ours(base: pathlib.Path, data: pathlib.Path, workers: int) -> float:
    """Sum of PSS of the workers after their first epoch, MiB."""
    config = base / f"{data.stem}.toml"
    config.write_text(CONFIG.format(data=data, model=smallest.MODEL))
    runs = base / f"runs-{data.stem}-{workers}"
    command = [record.binary("enn"), "train", str(config), "--nproc-per-node", str(workers), "--runs-dir", str(runs), "--quiet"]
    child = subprocess.Popen(command, env=record.environment(), stderr=subprocess.PIPE)
    try:
        deadline = time.time() + WAIT_S
        while time.time() < deadline and child.poll() is None:
            time.sleep(0.2)
            pids = set()
            ended = False
            for journal in runs.glob("*/events.jsonl"):
                for line in journal.read_text().splitlines():
                    event = json.loads(line) if line.endswith("}") else {}
                    if event.get("event") == "worker_started":
                        pids.add(event["pid"])
                    ended |= event.get("event") == "epoch_ended"
            if ended:
                return sum(pss_mib(pid) for pid in pids)
        sys.exit(f"no epoch within {WAIT_S} s")
    finally:
        for _ in range(2):
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        child.wait(60)


def peer(python: str, data: pathlib.Path, workers: int) -> float:
    """Sum of PSS of processes that each loaded the arrays, MiB."""
    children = [
        subprocess.Popen([python, "-c", PEER, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(workers)
    ]
    try:
        for child in children:
            child.stdout.readline()
        return sum(pss_mib(child.pid) for child in children)
    finally:
        for child in children:
            child.stdin.close()
            child.wait(60)


def growth(measure, big: pathlib.Path, tiny: pathlib.Path, mib: float) -> float:
    """Percent of the data by which total memory grows per added worker."""
    many = measure(big, WORKERS) - measure(tiny, WORKERS)
    one = measure(big, 1) - measure(tiny, 1)
    return 100 * (many - one) / (WORKERS - 1) / mib


def main() -> None:
    """Makes the data, measures both."""
    python = os.environ.get("ENN_PYTHON") or sys.exit("set ENN_PYTHON to a Python with numpy (make conformance builds one)")
    with tempfile.TemporaryDirectory(dir=record.ROOT / "target") as folder:
        base = pathlib.Path(folder)
        big, tiny = base / "big.npz", base / "tiny.npz"
        for path, rows in ((big, ROWS), (tiny, ROWS_TINY)):
            subprocess.run([python, "-c", MAKE, str(path), str(rows), str(WIDTH)], check=True)
        mib = ROWS * (WIDTH + 4) * 4 / 2**20
        a = [max(0.01, growth(lambda d, w: ours(base, d, w), big, tiny, mib))]
        b = [growth(lambda d, w: peer(python, d, w), big, tiny, mib)]
    # 5 % of the data per worker is the promise; the peer's growth is about 100 %.
    record.record("shared_data_memory", "%", "lower", a, b, "numpy.load per process", 20.0)
    sys.exit(0 if a[0] < 5.0 else 1)


if __name__ == "__main__":
    main()
