"""Writes target/bench/NAME.json; `run.py` prints the table.

A bench runs ours and the peer alternately in one run, so that whatever else the machine does meets both.
"""

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "target" / "bench"
# What the machine did before the bench began.
LOAD = os.getloadavg()[0]


def binary(name: str) -> str:
    """Path of a release binary, which `make build-all` must have made; in $ENN_BIN_DIR where that is set."""
    path = pathlib.Path(os.environ.get("ENN_BIN_DIR") or ROOT / "target" / "release") / name
    if not path.exists():
        sys.exit(f"{path}: not found; run `make build-all` first")
    return str(path)


def environment() -> dict[str, str]:
    """The environment of a child: ours plus the path of libtorch."""
    libtorch = os.environ.get("LIBTORCH", str(ROOT / "target" / "libtorch"))
    return dict(os.environ, LD_LIBRARY_PATH=f"{libtorch}/lib")


def peer_environment() -> dict[str, str]:
    """The environment of a peer: its own libraries, not ours."""
    return {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}


def alternate(rounds: int, ours: Callable[[], float], peer: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Runs ours and the peer in turn; each returns its measure."""
    a: list[float] = []
    b: list[float] = []
    for _ in range(rounds):
        a.append(ours())
        b.append(peer())
    return a, b


def processor() -> str:
    """What the processor calls itself."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def gpus() -> str:
    """The GPUs, as `2 × NVIDIA H200`; empty where there are none."""
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    names = asked.stdout.split("\n")[:-1] if asked.returncode == 0 else []
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def machine() -> dict:
    """The machine that a figure is from; MEASURED.md names it beside the figure (measured.py)."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9),
        "gpus": gpus(),
        "load": round(LOAD, 1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def commit() -> str:
    """The commit that is measured; empty where there is no git."""
    try:
        asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return asked.stdout.strip()


def record(
    name: str,
    unit: str,
    better: str,
    ours: list[float],
    peer: list[float],
    peer_name: str,
    limit: float | None,
    more: dict | None = None,
) -> bool:
    """Writes the result of medians and what `more` there is to say; `limit` is the smallest ratio that passes, none when any does.

    Returns whether it passes.
    """
    a, b = statistics.median(ours), statistics.median(peer)
    over, under = (b, a) if better == "lower" else (a, b)
    # A count may be nothing at all; that has no ratio.
    ratio = over / under if under else None
    result = {
        "name": name,
        "unit": unit,
        "better": better,
        "ours": a,
        "peer": b,
        "peer_name": peer_name,
        "ratio": ratio,
        "limit": limit,
        "n": len(ours),
        "spread": [min(ours), max(ours)],
        "command": " ".join(["python3", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]]),
        "machine": machine(),
        "commit": commit(),
        **(more or {}),
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return limit is None or ratio is None or ratio >= limit
