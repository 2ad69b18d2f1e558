"""store_ops_N, store_p99_N for N = 1, 16, 256, 1,024 clients, and barrier_1024: our store beside PyTorch's.

The peer is torch's own TCPStore server (libuv), in a process that does nothing else. One generator (store_load) loads both,
in turn, in the same run: N connections, each of which sets, gets and adds in turn and waits for every answer. The barrier
is 1,024 clients that add to one counter and wait for a key which the last one sets. Needs ENN_PYTHON, a Python with torch.

Connecting is not measured: torch's server looks the name of every client up, one after the other, and serves nobody
meanwhile. So that this ends in time where name servers are slow, the peer waits for them as little as it can be told to.
"""

import contextlib
import json
import os
import resource
import subprocess
import sys

import _record as record

LEVELS = [1, 16, 256, 1024]
ROUNDS = int(os.environ.get("ENN_BENCH_ROUNDS", "7"))
SECONDS = os.environ.get("ENN_BENCH_SECONDS", "1.5")
BARRIERS = "60"
FILES_NEEDED = 4096
LOAD_SECONDS_MAX = 600
PEER_NAME = "torch 2.11 TCPStore (libuv)"
PEER = """
import datetime, sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=60), wait_for_workers=False, use_libuv=True)
assert store.libuvBackend
print(store.port, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def server(command, environment):
    """Port of a server that lives as long as its input is open."""
    child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield int(child.stdout.readline())
    finally:
        child.stdin.close()
        child.wait(30)


def load(ports, *arguments):
    """What the generator measured, for each port, for each round."""
    command = [record.binary("store_load"), *arguments, *map(str, ports)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_SECONDS_MAX)
    if done.returncode != 0:
        sys.exit(f"store_load {' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def raise_open_files():
    """Lets this process and its children open as many files as the largest level needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_NEEDED:
        if hard < FILES_NEEDED:
            sys.exit(f"store: {hard} open files are allowed, {FILES_NEEDED} needed; hint: ulimit -n {FILES_NEEDED}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_NEEDED, hard))


def main():
    """Both servers live through the whole run."""
    python = os.environ.get("ENN_PYTHON") or sys.exit("set ENN_PYTHON to a Python with torch 2.11 (make conformance builds one)")
    raise_open_files()
    passed = True
    quick_names = dict(record.peer_environment(), RES_OPTIONS="timeout:1 attempts:1")
    column = lambda rows, name: [row[name] for row in rows]
    with (server([record.binary("store_server")], record.environment()) as ours,
          server([python, "-c", PEER], quick_names) as peer):
        for level in LEVELS:
            a, b = load((ours, peer), "mix", str(level), str(ROUNDS), SECONDS)
            passed &= record.record(f"store_ops_{level}", "operations/s", "higher", column(a, "operations_per_s"),
                                    column(b, "operations_per_s"), PEER_NAME, 1.0)
            passed &= record.record(f"store_p99_{level}", "us", "lower", column(a, "p99_us"), column(b, "p99_us"), PEER_NAME, 1.0)
        a, b = load((ours, peer), "barrier", "1024", BARRIERS, "1")
        passed &= record.record("barrier_1024", "s", "lower", column(a, "seconds"), column(b, "seconds"), PEER_NAME, 1.0)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
