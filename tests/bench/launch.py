"""launch_to_first_step: from the command line to the first optimizer step of two CPU workers.

Ours: `enn train` on the staged weather example, until the first `stepped` event. Peer: torchrun with the smallest script that does the same:
join a Gloo group, wrap a linear layer in DistributedDataParallel, do one step. Needs ENN_PYTHON, a Python with torch 2.11.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import _record as record

PEER = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(8, 8))
opt = torch.optim.AdamW(model.parameters())
model(torch.randn(4, 8)).sum().backward()
opt.step()
if dist.get_rank() == 0:
    print(time.time(), flush=True)
dist.destroy_process_group()
"""


def ours(config: pathlib.Path, runs: pathlib.Path) -> float:
    """Seconds from exec to the first step; the run is stopped afterwards."""
    start = time.time()
    command = [record.binary("enn"), "train", str(config), "--nproc-per-node", "2", "--runs-dir", str(runs), "--quiet"]
    child = subprocess.Popen(command, env=record.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        known = set(runs.glob("*/events.jsonl"))
        deadline = start + 60
        while time.time() < deadline:
            for journal in set(runs.glob("*/events.jsonl")) | known:
                if journal.stat().st_mtime < start:
                    continue
                for line in journal.read_text().splitlines():
                    event = json.loads(line) if line.endswith("}") else {}
                    if event.get("event") == "stepped":
                        return event["time"] - start
            time.sleep(0.01)
        sys.exit(f"no step within 60 s: {child.stderr.read().decode()[-2000:]}")
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)


def peer(python: str, script: pathlib.Path) -> float:
    """Seconds from exec of torchrun to the end of the first step on rank 0."""
    start = time.time()
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    out = subprocess.run(command, env=record.peer_environment(), capture_output=True, text=True, check=True, timeout=120)
    return float(out.stdout.split()[-1]) - start


def main() -> None:
    """Stages once, then alternates."""
    python = os.environ.get("ENN_PYTHON") or sys.exit("set ENN_PYTHON to a Python with torch 2.11 (make conformance builds one)")
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        script = base / "ddp.py"
        script.write_text(PEER)
        config = record.ROOT / "examples" / "weather" / "weather.toml"
        ours(config, base / "runs")
        a, b = record.alternate(5, lambda: ours(config, base / "runs"), lambda: peer(python, script))
    passed = record.record("launch_to_first_step", "s", "lower", a, b, "torchrun + smallest DDP", 1.0)
    if sorted(a)[len(a) // 2] >= 1.5:
        sys.exit("launch_to_first_step: not below 1.5 s")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
