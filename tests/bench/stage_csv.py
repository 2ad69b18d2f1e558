#!/usr/bin/env python3
"""Staging a 1 GB numeric CSV against pandas.read_csv and pyarrow.csv.read_csv, both of which only read.

Ours hashes, parses, cleans, splits, writes x, y and masks, and measures statistics; its time is of the whole call. Each run is a
process of its own, the file is in the page cache, runs alternate, medians count. Peers come from the Python named by
ENN_PYTHON (with pandas and pyarrow); both use as many threads as there are cores, as they do by themselves.

    ENN_PYTHON=venv/bin/python python3 tests/bench/stage_csv.py [--mb 1000] [--runs 5]

Writes target/bench/stage_csv_vs_pandas.json and stage_csv_vs_pyarrow.json; fails when a limit or the memory bound is missed.
"""

import argparse, json, os, random, shutil, statistics, subprocess, sys, tempfile
from pathlib import Path

from _record import commit, machine

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "target" / "bench"
PEAK_MB_MAX = 512
LIMITS = {"pandas": 5.0, "pyarrow": 1.0}
PEERS = {
    "pandas": "import pandas, time, sys; t = time.perf_counter(); n = len(pandas.read_csv(sys.argv[1])); print(time.perf_counter() - t, n)",
    "pyarrow": "import pyarrow.csv, time, sys; t = time.perf_counter(); n = pyarrow.csv.read_csv(sys.argv[1]).num_rows; print(time.perf_counter() - t, n)",
}


def generate(path: Path, megabytes: int) -> None:
    """20 columns: 14 doubles with all their digits, 4 with two decimals, 2 integers. A block is repeated with another last column."""
    rng = random.Random(7)
    rows = []
    for _ in range(20_000):
        cells = [repr(rng.gauss(0, 1) * 10 ** (i % 4)) for i in range(14)]
        cells += [f"{rng.random() * 1000:.2f}" for _ in range(4)] + [str(rng.randrange(-1000, 1000))]
        rows.append(",".join(cells))
    with open(path, "w") as file:
        file.write(",".join(f"c{i}" for i in range(20)) + "\n")
        number = 0
        while file.tell() < megabytes * 1_000_000:
            file.write("".join(f"{row},{number + i}\n" for i, row in enumerate(rows)))
            number += len(rows)


def ours(program: Path, csv: Path, threads: int) -> dict:
    # Both sides write to and read from memory: what is measured is the program, not this machine's disk.
    home = "/dev/shm" if shutil.disk_usage("/dev/shm").free > 2 * csv.stat().st_size else str(BENCH)
    out = tempfile.mkdtemp(prefix="stage-csv-", dir=home)
    try:
        done = subprocess.run([program, csv, out, str(threads)], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)
    finally:
        shutil.rmtree(out)


def peer(python: str, code: str, csv: Path) -> tuple[float, int]:
    done = subprocess.run([python, "-c", code, csv], check=True, capture_output=True, text=True)
    seconds, rows = done.stdout.split()
    return float(seconds), int(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    python = os.environ.get("ENN_PYTHON", sys.executable)
    BENCH.mkdir(parents=True, exist_ok=True)
    csv = BENCH / f"stage_csv_{args.mb}.csv"
    if not csv.exists():
        generate(csv.with_suffix(".part"), args.mb)
        csv.with_suffix(".part").rename(csv)
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "enn-launcher", "--example", "stage_csv"], cwd=ROOT, check=True)
    program = ROOT / "target" / "release" / "examples" / "stage_csv"
    csv.read_bytes()
    times = {"ours": [], "pandas": [], "pyarrow": []}
    peak_mb, rows = 0.0, set()
    for _ in range(args.runs):
        result = ours(program, csv, args.threads)
        times["ours"].append(result["seconds"])
        peak_mb = max(peak_mb, result["peak_kb"] / 1024)
        rows.add(result["rows"])
        for name, code in PEERS.items():
            seconds, count = peer(python, code, csv)
            times[name].append(seconds)
            rows.add(count)
    if len(rows) != 1:
        sys.exit(f"the sides read different numbers of rows: {rows}")
    failed = peak_mb > PEAK_MB_MAX
    for name, limit in LIMITS.items():
        mine, other = statistics.median(times["ours"]), statistics.median(times[name])
        ratios = sorted(b / a for a, b in zip(times["ours"], times[name]))
        record = {
            "name": f"stage_csv_vs_{name}", "unit": "s", "better": "lower", "ours": mine, "peer": other, "peer_name": f"{name} read_csv",
            "ratio": other / mine, "limit": limit, "n": args.runs, "spread": [ratios[0], ratios[-1]],
            "command": "python3 tests/bench/stage_csv.py", "machine": machine(), "commit": commit(),
            "megabytes": args.mb, "peak_mb": peak_mb, "peak_mb_max": PEAK_MB_MAX,
        }
        (BENCH / f"{record['name']}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"{record['name']}: ours {mine:.2f} s, {name} {other:.2f} s, ratio {record['ratio']:.2f} (limit {limit}), peak {peak_mb:.0f} MB")
        failed |= record["ratio"] < limit
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
