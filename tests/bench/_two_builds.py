"""two_builds_NAME: two builds of ENN in turn on one machine: how many times as fast as the first the second is; at least 0.97.

    _two_builds.py BEFORE AFTER [--pairs 5] [--only NAME…]

Both are folders with the programs of one build (`enn`, `enn-worker`, `serve_load`, `step_bench`): target/release, or a copy of it.
Measured are step (a step of the small model on the CPU), launch (command to the first step of two workers), restart (kill -9 of a worker
of `enn run` to the first line of its replacement), recover (kill -9 of one of two training workers to the first step that both have done
since), save (writing and committing a checkpoint), stage (a CSV of 100 MB), serve (requests of 8 clients), supervised (a step of two
supervised workers with a spare), first_line_2, first_line_8, first_line_64 (command to the first line of the last of so many workers of
`enn run`) and resident (memory of the launcher with 256 workers).
Each pair runs one build behind the other, and every second pair the other way round; the median of the pairs' ratios counts.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import _record as record

LIMIT = 0.97
CSV_MB = 100
STAGE_TOML = """
[data]
files = ["table.csv"]
[data.rows]
features = [{columns}]
targets = ["c19"]
"""
SECONDS_MAX = 300


class Build:
    """One build. Benches of this folder find its programs through ENN_BIN_DIR."""

    def __init__(self, folder: str) -> None:
        self.folder = pathlib.Path(folder).resolve()
        missing = [name for name in ("enn", "enn-worker", "serve_load", "step_bench") if not (self.folder / name).exists()]
        if missing:
            sys.exit(f"{self.folder}: no {', '.join(missing)}; `make build-all` makes them")

    def __enter__(self) -> "Build":
        os.environ["ENN_BIN_DIR"] = str(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        del os.environ["ENN_BIN_DIR"]


def events(runs: pathlib.Path, kind: str) -> list[dict]:
    """The events of one kind in the only run of a folder."""
    [journal] = runs.glob("*/events.jsonl")
    found = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
    return [event for event in found if event["event"] == kind]


def train(scratch: pathlib.Path, *more: str) -> pathlib.Path:
    """A short training of the weather example; its folder of runs."""
    runs = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    config = record.ROOT / "examples" / "weather" / "weather.toml"
    command = [record.binary("enn"), "train", str(config), "--runs-dir", str(runs), "--quiet", *more]
    subprocess.run(command, env=record.environment(), check=True, capture_output=True, timeout=SECONDS_MAX)
    return runs


def step(_: pathlib.Path) -> float:
    """Milliseconds of a recorded step of the small model."""
    command = [record.binary("step_bench"), "--model", "small", "--mode", "plan", "--steps", "40", "--threads", "1"]
    done = subprocess.run(command, cwd=record.ROOT, env=record.environment(), check=True, capture_output=True, text=True, timeout=SECONDS_MAX)
    [line] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return line["result"]["ms"]


def launch(scratch: pathlib.Path) -> float:
    """Seconds from the command to the first step of two workers."""
    import launch as bench

    runs = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    return bench.ours(record.ROOT / "examples" / "weather" / "weather.toml", runs)


def restart(scratch: pathlib.Path) -> float:
    """Milliseconds from kill -9 of a worker of `enn run` to the first line of its replacement; median of six kills."""
    import restart_after_kill as bench

    victims = bench.Victims("enn", pathlib.Path(tempfile.mkdtemp(dir=scratch)))
    try:
        return statistics.median(victims.kill() for _ in range(6))
    finally:
        victims.launch.stop()


def recover(scratch: pathlib.Path) -> float:
    """Seconds from kill -9 of one of two training workers, with a spare, to the first step that both have done since; median of three."""
    import _watched as watched

    folder = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    with watched.Enn(watched.configuration(folder), folder / "run", "--spares", "1") as run:
        found = []
        for kill in range(3):
            run.wait_prepared()
            run.rest(1.0)
            run.wait_prepared()
            found.append(run.recover(kill % watched.WORKERS).first)
    return statistics.median(found)


def save(scratch: pathlib.Path) -> float:
    """Milliseconds that writing and committing a checkpoint takes; median of the checkpoints of a short run."""
    runs = train(scratch, "--set", "train.epochs=6", "--set", "train.checkpoint_every=1", "--set", "train.patience=0")
    return 1000 * statistics.median(event["seconds"] for event in events(runs, "checkpoint_committed"))


def stage(scratch: pathlib.Path) -> float:
    """Seconds for `enn stage` on a CSV of 100 MB, anew each time."""
    import stage_csv as bench

    table = scratch / "table.csv"
    if not table.exists():
        bench.generate(table, CSV_MB)
    config = scratch / "stage.toml"
    columns = ", ".join(f'"c{i}"' for i in range(19))
    config.write_text(STAGE_TOML.format(columns=columns))
    out = tempfile.mkdtemp(dir=scratch)
    began = time.monotonic()
    command = [record.binary("enn"), "stage", str(config), "--out", out]
    subprocess.run(command, env=record.environment(), check=True, capture_output=True, timeout=SECONDS_MAX)
    return time.monotonic() - began


def serve(scratch: pathlib.Path) -> float:
    """Requests per second of `enn serve`, 8 clients, one row each."""
    import serve_rps as bench

    runs = train(scratch, "--set", "train.epochs=1")
    [run] = [path.parent for path in runs.glob("*/run.json")]
    port = bench.free_port()
    command = [record.binary("enn"), "serve", str(run), "--addr", str(port), "--set", "train.threads=1"]
    server = bench.started(command, record.environment(), port)
    try:
        body = scratch / "body.json"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/example", timeout=10) as answer:
            body.write_bytes(answer.read())
        return bench.load(port, 8, 4, body)["rps"]
    finally:
        server.terminate()
        server.wait()


def supervised(scratch: pathlib.Path) -> float:
    """Milliseconds a step of `enn train` with two workers and a spare; without the first steps."""
    runs = train(scratch, "--spares", "1", "--set", "train.epochs=60", "--set", "train.patience=0")
    steps = [event for event in events(runs, "stepped") if event["step"] >= 80]
    return 1000 * (steps[-1]["time"] - steps[0]["time"]) / (steps[-1]["step"] - steps[0]["step"])


def first_line(scratch: pathlib.Path, workers: int) -> float:
    """Seconds from the command to the first line of the last worker of `enn run`; median of three launches."""
    import launch_first_line as bench

    return statistics.median(bench.seconds("enn", workers, scratch) for _ in range(3))


def first_line_2(scratch: pathlib.Path) -> float:
    return first_line(scratch, 2)


def first_line_8(scratch: pathlib.Path) -> float:
    return first_line(scratch, 8)


def first_line_64(scratch: pathlib.Path) -> float:
    return first_line(scratch, 64)


def resident(scratch: pathlib.Path) -> float:
    """Megabytes of the launcher's processes with 256 workers."""
    import launcher_rss_256 as bench

    return bench.megabytes("enn", scratch)


# What is measured, its unit, and whether more is better.
MEASURES = {
    step: ("ms", "lower"),
    launch: ("s", "lower"),
    restart: ("ms", "lower"),
    recover: ("s", "lower"),
    save: ("ms", "lower"),
    stage: ("s", "lower"),
    serve: ("requests/s", "higher"),
    supervised: ("ms", "lower"),
    first_line_2: ("s", "lower"),
    first_line_8: ("s", "lower"),
    first_line_64: ("s", "lower"),
    resident: ("MB", "lower"),
}


def compare(measure, builds: tuple[Build, Build], pairs: int, scratch: pathlib.Path) -> bool:
    """Runs the pairs of one measure, prints and records them; whether the second build is fast enough."""
    unit, better = MEASURES[measure]
    found: dict[Build, list[float]] = {build: [] for build in builds}
    for pair in range(pairs):
        for build in builds if pair % 2 == 0 else reversed(builds):
            with build:
                found[build].append(measure(scratch))
    before, after = (found[build] for build in builds)
    ratios = [a / b if better == "lower" else b / a for a, b in zip(before, after)]
    name, ratio = f"two_builds_{measure.__name__}", statistics.median(ratios)
    print(f"{name}: before {statistics.median(before):.4g} {unit}, after {statistics.median(after):.4g}, ratio {ratio:.3f} "
          f"({min(ratios):.3f} to {max(ratios):.3f})", flush=True)
    record.record(name, unit, better, after, before, "the build before", None, {"ratios": ratios, "median_of_pairs": ratio})
    return ratio >= LIMIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=[measure.__name__ for measure in MEASURES])
    options = parser.parse_args()
    builds = (Build(options.before), Build(options.after))
    wanted = [measure for measure in MEASURES if not options.only or measure.__name__ in options.only]
    with tempfile.TemporaryDirectory() as folder:
        slow = [measure.__name__ for measure in wanted if not compare(measure, builds, options.pairs, pathlib.Path(folder))]
    if slow:
        sys.exit(f"two_builds: {', '.join(slow)} below {LIMIT} of the build before")


if __name__ == "__main__":
    main()
