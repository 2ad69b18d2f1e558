"""rendezvous_sim_10000: CPU seconds of one rendezvous of 10,000 simulated agents, limit 2 s; it has no peer, the limit stands in its place.

A real rendezvous over real sockets (launcher/examples/rendezvous_sim.rs): the agents, in a process of their own, connect, prove themselves, join, are told of
the round and of each other, finish, and hear of the end. Counted is the CPU time of both processes, user and system. Both need 10,064 descriptors (ulimit -Hn).
"""

import json
import subprocess
import sys

import _record as record

AGENTS = 10_000
CPU_S_MAX = 2.0
RUNS = 5
WAIT_S = 300


def measure(program: str) -> float:
    run = subprocess.run([program, str(AGENTS)], capture_output=True, text=True, timeout=WAIT_S, check=False)
    if run.returncode != 0:
        sys.exit(f"rendezvous_sim failed: {run.stderr.strip()}")
    figures = json.loads(run.stdout)
    if figures["agents"] != AGENTS:
        sys.exit(f"{figures['agents']} agents took part, expected {AGENTS}")
    print(figures)
    return figures["cpu_s"]


def main() -> None:
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "enn-launcher", "--example", "rendezvous_sim"], cwd=record.ROOT, check=True)
    program = record.binary("examples/rendezvous_sim")
    ours = [measure(program) for _ in range(RUNS)]
    if not record.record(f"rendezvous_sim_{AGENTS}", "CPU s", "lower", ours, [CPU_S_MAX], "the limit", 1.0):
        sys.exit(1)


if __name__ == "__main__":
    main()
