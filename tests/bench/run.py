"""Runs the benches of one kind (`run.py cpu|gpu [NAME…]`) and prints one table.

A bench is a file `NAME.py`, or `gpu_NAME.py` when it needs a GPU; it writes target/bench/NAME.json: {name, unit, better,
ours, peer, peer_name, ratio, limit, n, spread, command, machine, commit}. A ratio above 1 means that ours is better; a
ratio below the limit fails. A bench that this machine cannot run, or cannot decide, says so and ends with 77.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "target" / "bench"
BENCH_SECONDS_MAX = 1800
# Those that take longer.
LONGER_SECONDS_MAX = {"gpu_compile": 5400}
SKIPPED = 77


def row(found):
    ratio, limit = found.get("ratio"), found.get("limit")
    verdict = "" if limit is None or ratio is None else ("ok" if ratio >= limit else "BELOW LIMIT")
    # The medians are no verdict where a bench has none.
    verdict = "undecided" if found.get("verdict") == "undecided" else verdict
    number = lambda value: "-" if value is None else f"{value:,.4g}"
    return [found["name"], number(found["ours"]), number(found.get("peer")), found["unit"], number(ratio), number(limit),
            found.get("peer_name") or "-", verdict]


def table(rows):
    rows = [["bench", "ours", "peer", "unit", "ratio", "limit", "peer is", ""], *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def main():
    kind, names = sys.argv[1], set(sys.argv[2:])
    files = [path for path in sorted(HERE.glob("*.py")) if path.name != "run.py" and not path.name.startswith("_")]
    files = [path for path in files if path.name.startswith("gpu_") == (kind == "gpu")]
    files = [path for path in files if not names or path.stem in names]
    if not files:
        sys.exit(f"error: no bench of kind {kind} was found in {HERE}\nhint: the file names without .py are the benches")
    OUT.mkdir(parents=True, exist_ok=True)
    failed, rows = [], []
    for path in files:
        before = {found: found.stat().st_mtime_ns for found in OUT.glob("*.json")}
        limit = LONGER_SECONDS_MAX.get(path.stem, BENCH_SECONDS_MAX)
        done = subprocess.run([sys.executable, str(path)], timeout=limit, cwd=HERE.parents[1], env=os.environ)
        written = [found for found in sorted(OUT.glob("*.json")) if before.get(found) != found.stat().st_mtime_ns]
        rows += [row(json.loads(found.read_text())) for found in written]
        if done.returncode != SKIPPED and (done.returncode != 0 or not written):
            failed.append(path.stem)
    table(rows)
    if failed:
        sys.exit(f"error: failed: {', '.join(failed)}")
    sys.exit(1 if any(row[-1] == "BELOW LIMIT" for row in rows) else 0)


if __name__ == "__main__":
    main()
