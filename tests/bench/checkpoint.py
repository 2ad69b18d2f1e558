"""Saving and loading of 2 GiB beside torch.distributed.checkpoint and beside the raw system calls, in turn, in one run.

    save_2gib_vs_dcp, save_2gib_2_vs_dcp     a shard per process with checksums, fsynced and committed; dcp.save (no fsync of its own names)
    save_vs_raw, save_vs_disk_limit          the same against write(2) and fsync of the same bytes: in memory (tmpfs), on the disk
    save_vs_hf                               against PyTorch's writer of Hugging Face files
    async_blocked_vs_dcp, …_vs_copy          how long training stands still; dcp.async_save, first call left out for both; memcpy
    load_2gib_vs_dcp, load_vs_raw            into memory that is there, every byte checked; dcp.load, read(2)
    save_small, load_small                   10,000 tensors of 1 KiB, microseconds each

ENN_BENCH_BYTES (2 GiB) and ENN_BENCH_ROUNDS (5) make it smaller; ENN_PYTHON is a Python with PyTorch 2.11. Peak memory: about five times
the bytes. Files are in memory (/dev/shm), but for save_vs_disk_limit, whose are below target.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from _record import OUT, ROOT, environment, peer_environment, record

BYTES = int(os.environ.get("ENN_BENCH_BYTES", 2 << 30))
ROUNDS = int(os.environ.get("ENN_BENCH_ROUNDS", 5))
TENSORS = 32
PREPARED_AFTER_S = 10
SMALL = 10_000
PYTHON = os.environ.get("ENN_PYTHON", str(ROOT / "target" / "venv" / "bin" / "python"))
EXAMPLE = ROOT / "target" / "release" / "examples" / "checkpoint_speed"


class Side:
    """Processes, one a rank, that are told the same and answer together: the slowest counts."""

    def __init__(self, command, env, world):
        make = lambda rank: subprocess.Popen(command(rank), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=env)
        self.ranks = [make(rank) for rank in range(world)]
        for rank in self.ranks:
            self.heard(rank)

    def heard(self, rank):
        line = rank.stdout.readline()
        if not line:
            sys.exit(f"error: {rank.args[0]} ended with {rank.wait()}")
        return float(line)

    def all(self, order):
        for rank in self.ranks:
            rank.stdin.write(order.format(rank=self.ranks.index(rank)) + "\n")
        return max(self.heard(rank) for rank in self.ranks)

    def first(self, order):
        self.ranks[0].stdin.write(order + "\n")
        return self.heard(self.ranks[0])

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
            rank.wait()


def ours(world, tensors=TENSORS, size=BYTES):
    return Side(lambda rank: [str(EXAMPLE), str(rank), str(world), str(size), str(tensors)], environment(), world)


def peer(world, tensors=TENSORS, size=BYTES, more=()):
    store = tempfile.mktemp()
    script = str(pathlib.Path(__file__).with_name("_dcp_peer.py"))
    return Side(lambda rank: [PYTHON, script, str(rank), str(world), str(size), str(tensors), store, *more], peer_environment(), world)


def gone(*paths):
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def saved(side, folder):
    """Seconds of a save: the slowest shard, and the commit."""
    temporary, committed = folder / "temporary", folder / "step-00000001"
    gone(committed)
    seconds = side.all(f"save {temporary}")
    return seconds + side.first(f"commit {temporary} {committed} {len(side.ranks)}")


def raw(side, folder):
    seconds = side.all(f"raw {folder}/raw" + "{rank}")
    for rank in range(len(side.ranks)):
        (folder / f"raw{rank}").unlink()
    return seconds


def saves(folder, world, rounds, with_hf):
    a, b = ours(world), peer(world)
    times = {"ours": [], "raw": [], "dcp": [], "hf": []}
    for _ in range(rounds):
        times["raw"].append(raw(a, folder))
        times["ours"].append(saved(a, folder))
        gone(folder / "step-00000001")
        times["dcp"].append(b.all(f"save {folder}/dcp"))
        gone(folder / "dcp")
        if with_hf:
            times["hf"].append(b.all(f"hf {folder}/hf"))
            gone(folder / "hf")
    a.end()
    b.end()
    return times


def loads(folder, rounds):
    a, b = ours(1), peer(1)
    a.first("room")
    saved(a, folder)
    b.first(f"save {folder}/dcp")
    times = {"ours": [], "raw": [], "dcp": []}
    for _ in range(rounds):
        times["raw"].append(a.first(f"read {folder}/step-00000001/__0_0.distcp"))
        times["ours"].append(a.first(f"into {folder}/step-00000001"))
        times["dcp"].append(b.first(f"load {folder}/dcp"))
    a.end()
    b.end()
    return times


def blocks(folder, rounds):
    a, b = ours(1), peer(1)
    a.first("room")
    a.first("prepare")
    # The pages are made beside the first steps of a run.
    time.sleep(PREPARED_AFTER_S)
    times = {"ours": [], "dcp": [], "copy": []}
    for turn in range(rounds + 1):
        times["copy"].append(a.first("copy"))
        found = a.first("stage"), b.first(f"async {folder}/dcp")
        a.first("arrive")
        gone(folder / "dcp")
        if turn == 0:
            print(f"first call: ours {found[0]:.3f} s, dcp.async_save {found[1]:.3f} s")
        else:
            times["ours"].append(found[0])
            times["dcp"].append(found[1])
    a.end()
    b.end()
    return times


def small(folder, rounds):
    size = SMALL * 1024
    a, b = ours(1, SMALL, size), peer(1, SMALL, size)
    each = lambda seconds: seconds / SMALL * 1e6
    a.first("room")
    times = {"save": [], "load": [], "dcp_save": [], "dcp_load": []}
    for _ in range(rounds):
        times["save"].append(each(saved(a, folder)))
        times["load"].append(each(a.first(f"into {folder}/step-00000001")))
        times["dcp_save"].append(each(b.first(f"save {folder}/dcp")))
        times["dcp_load"].append(each(b.first(f"load {folder}/dcp")))
        gone(folder / "dcp")
    a.end()
    b.end()
    return times


def require():
    if not EXAMPLE.exists() or not pathlib.Path(PYTHON).exists():
        print(f"needs {EXAMPLE} (cargo build --release -p enn-worker --example checkpoint_speed) and PyTorch at {PYTHON} (ENN_PYTHON)")
        sys.exit(77)


def main():
    require()
    OUT.mkdir(parents=True, exist_ok=True)
    ok = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory, tempfile.TemporaryDirectory(dir=ROOT / "target") as disk:
        memory, disk = pathlib.Path(memory), pathlib.Path(disk)
        one = saves(memory, 1, ROUNDS, True)
        ok.append(record("save_2gib_vs_dcp", "s", "lower", one["ours"], one["dcp"], "dcp.save, 1 process", 2.3))
        ok.append(record("save_vs_raw", "s", "lower", one["ours"], one["raw"], "write and fsync, 1 process", 1 / 1.15))
        ok.append(record("save_vs_hf", "s", "lower", one["ours"], one["hf"], "dcp's HF writer", 5))
        two = saves(memory, 2, ROUNDS, False)
        ok.append(record("save_2gib_2_vs_dcp", "s", "lower", two["ours"], two["dcp"], "dcp.save, 2 processes", 2.3))
        ok.append(record("save_2_vs_raw", "s", "lower", two["ours"], two["raw"], "write and fsync, 2 processes", 1 / 1.15))
        found = saves(disk, 1, max(ROUNDS // 2, 2), False)
        ok.append(record("save_vs_disk_limit", "s", "lower", found["ours"], found["raw"], "write and fsync on disk", 1 / 1.15))
        found = blocks(memory, ROUNDS)
        ok.append(record("async_blocked_vs_dcp", "s", "lower", found["ours"], found["dcp"], "dcp.async_save", 1.8))
        ok.append(record("async_blocked_vs_copy", "s", "lower", found["ours"], found["copy"][1:], "memcpy, one thread", 0.8))
        found = loads(memory, ROUNDS)
        ok.append(record("load_2gib_vs_dcp", "s", "lower", found["ours"], found["dcp"], "dcp.load, warm", 2.2))
        ok.append(record("verify_on_load", "s", "lower", found["ours"], found["raw"], "read(2), unchecked", 0.8))
        found = small(memory, ROUNDS)
        ok.append(record("save_small", "µs", "lower", found["save"], found["dcp_save"], "dcp.save", None))
        ok.append(record("load_small", "µs", "lower", found["load"], found["dcp_load"], "dcp.load", None))
    sys.exit(0 if all(ok) else 1)


if __name__ == "__main__":
    main()
