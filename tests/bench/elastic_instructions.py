"""elastic_overhead_instructions: instructions of an undisturbed step in the worker of `enn train --policy reform`, against the plain
loop, the same training without a launcher (worker/examples/plain_loop.rs), and, beside it, against `--policy restart`; at most 1 % more.

valgrind counts them, so that it does not matter what else the machine does: where elastic_overhead.py, which measures time, cannot
decide, this can. What the launcher does meanwhile on another core is not in it. A few epochs and more of them are trained: the
difference is that of the steps, with the validations between.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import _record as record
import _watched as watched

# Epochs, few and more.
EPOCHS = (1, 3)
# Of the data: an instruction takes fifty times as long.
LINES = 15_000
LIMIT = 1 / 1.01
# Beside other work it takes many times as long, and nobody who is slow is hung.
SECONDS_MAX = 3_600
# Nothing was found out.
SKIPPED = 77


def count(command: list[str], folder: pathlib.Path, **more: str) -> dict[int, int]:
    """Instructions of each process below `command` that valgrind sees, by process."""
    environment = record.environment() | {"OMP_NUM_THREADS": "1"} | more
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    total = lambda path: int(re.search(r"^summary: (\d+)", path.read_text(), re.MULTILINE)[1])
    return {int(path.stem): total(path) for path in folder.glob("*.counted")}


def counted(folder: pathlib.Path) -> list[str]:
    """What a program is put behind, to leave its count in `folder`."""
    return ["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={folder}/%p.counted"]


def trained(config: pathlib.Path, folder: pathlib.Path, policy: str, epochs: int) -> tuple[int, list[pathlib.Path]]:
    """Instructions of the worker that trains, its run and the staged data."""
    folder.mkdir()
    worker = folder / "worker"
    worker.write_text(f'#!/bin/sh\nexec {" ".join(counted(folder))} {record.binary("enn-worker")} "$@"\n')
    worker.chmod(0o700)
    keys = {"train.epochs": epochs, "train.checkpoint_every": watched.FOR_EVER, "model.linear_branch": "false"}
    sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    command = [record.binary("enn"), "train", str(config), "--nproc-per-node", "1", "--device", "cpu", "--policy", policy, "--hang-timeout", "0", "--quiet"]
    libtorch = record.environment()["LD_LIBRARY_PATH"]
    found = count([*command, "--runs-dir", str(folder / "runs"), *sets], folder, ENN_WORKER=str(worker), ENN_LIBTORCH=libtorch)
    [journal] = (folder / "runs").glob("*/events.jsonl")
    said = {event["event"]: event for event in map(json.loads, journal.read_text().splitlines())}
    return found[said["worker_started"]["pid"]], [journal.parent, pathlib.Path(said["staged"]["dir"])]


def looped(paths: list[pathlib.Path], folder: pathlib.Path) -> int:
    """Instructions of the plain loop with the configuration of a run and its data."""
    folder.mkdir()
    loop = record.ROOT / "target" / "release" / "examples" / "plain_loop"
    [total] = count([*counted(folder), *map(str, [loop, *paths, folder])], folder).values()
    return total


def main() -> None:
    if shutil.which("valgrind") is None:
        print("elastic_instructions: valgrind was not found; apt-get install valgrind")
        sys.exit(SKIPPED)
    example = ["cargo", "build", "--release", "-p", "enn-worker", "--example", "plain_loop"]
    subprocess.run(example, cwd=record.ROOT, env=record.environment(), check=True)
    totals: dict[str, list[int]] = {"reform": [], "restart": [], "plain": []}
    with watched.Folder() as folder:
        table = folder.config.parent / "weather.csv"
        table.write_text("".join(table.read_text().splitlines(keepends=True)[:LINES]))
        for epochs in EPOCHS:
            for policy in ("reform", "restart"):
                total, paths = trained(folder.config, folder.fresh(policy), policy, epochs)
                totals[policy].append(total)
            totals["plain"].append(looped(paths, folder.fresh("plain")))
    ours, restart, plain = (more - few for few, more in totals.values())
    over = {"overhead": ours / plain - 1, "overhead_restart": ours / restart - 1, "totals": totals}
    name = "elastic_overhead_instructions"
    record.record(name, "instructions", "lower", [ours], [plain], "a plain loop without a launcher", LIMIT, over)
    print(f"{name}: {over}", flush=True)
    sys.exit(0 if plain / ours >= LIMIT and restart / ours >= LIMIT else 1)


if __name__ == "__main__":
    main()
