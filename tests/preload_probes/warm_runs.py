"""Checks of the runs of a warm server: what is left when anybody ends at any step, many starts, how fast they are."""

import json
import os
import signal
import subprocess
import tempfile
import time

import client
from checks import SHORT_SECONDS, SMALL, gone, reap
from warm_checks import SLEEP, Warm

# Leaves a process of another session behind, and says which.
LEAVE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(60)
"""


def orphan_of(run):
    """Starts a worker that leaves a process behind: the worker and the process's pid."""
    reading, writing = os.pipe()
    worker = run.start([run.null, writing, writing])
    os.close(writing)
    worker.go()
    with os.fdopen(reading) as file:
        return worker, int(file.readline())


def left_behind(python, options):
    """At the end of a run its workers end, and what they left running too, unless it is to be left."""
    found = []
    with Warm(python) as warm:
        for leave in (False, True):
            run = warm.join(LEAVE, leave=leave)
            run.null = warm.null[0]
            waiting = run.start()
            worker, orphan = orphan_of(run)
            run.control.close()
            found += [f"leave {leave}: a worker stays" for each in (waiting, worker) if not gone(each.pid)]
            if gone(orphan, 1) == leave:
                found.append(f"leave {leave}: the orphan {'ended' if leave else 'stays'}")
            if leave:
                os.kill(orphan, signal.SIGKILL)
            run.stop()
        # An orphan that ends while the run goes on is reaped.
        run = warm.join(LEAVE)
        run.null = warm.null[0]
        worker, orphan = orphan_of(run)
        os.kill(orphan, signal.SIGKILL)
        time.sleep(1.5)
        found += ["an orphan is not reaped"] if os.path.exists(f"/proc/{orphan}") else []
        found += [] if worker.ending() is None else ["the worker ended with its orphan"]
        run.stop()
    reap()
    return found


def killed(python, options):
    """The run server is killed: its workers end. The warm server is killed: the run goes on to its end."""
    found = []
    with Warm(python) as warm:
        run = warm.join(SLEEP)
        waiting, running = run.start(), run.start()
        running.go()
        os.kill(run.answer["ready"]["pid"], signal.SIGKILL)
        found += ["a worker of a killed run server stays" for each in (waiting, running) if not gone(each.pid)]
        run.stop()
        found += [] if warm.ended("raise SystemExit(4)") == 4 else ["the warm server serves no longer"]
        run = warm.join("import time; time.sleep(.5); raise SystemExit(5)")
        early = run.start()
        early.go()
        warm.server.process.kill()
        warm.server.process.wait()
        late = run.start()
        late.go()
        codes = [early.ended_by(SHORT_SECONDS), late.ended_by(SHORT_SECONDS)]
        found += [] if codes == [5, 5] else [f"workers of a killed warm server ended with {codes}"]
        pid = run.answer["ready"]["pid"]
        run.stop()
        found += [] if gone(pid) else ["a run server stays"]
    reap()
    return found


LAUNCHER = """
import json, os, sys
sys.path.insert(0, {folder!r})
import cases, client, warm_client
class Warm:
    python = {python!r}
    path = {path!r}
    connect = warm_client.WarmServer.connect
environment = json.loads({environment!r})
args = ["-u", "-c", "import time; time.sleep(60)"]
null = os.open(os.devnull, os.O_RDWR)
run = warm_client.JoinedRun(Warm(), args, environment, "/tmp", {leave})
step = {step!r}
pids = [run.answer["ready"]["pid"]]
if step == "asked":
    run.request(args, environment, [null] * 3)
elif step != "joined":
    worker = run.fork(args, environment, [null] * 3)
    pids.append(worker.pid)
    if step == "running":
        worker.go()
print(*pids, flush=True)
os.read(0, 1)
"""


def launcher_killed(python, options):
    """A launcher that is killed at whatever step takes its run with it, and the warm server lives."""
    found = []
    with Warm(python) as warm:
        for step in ("joined", "asked", "forked", "running"):
            for leave in (False, True):
                text = LAUNCHER.format(folder=str(client.HERE), python=python, path=warm.server.path, leave=leave,
                                       step=step, environment=json.dumps(warm.environment))
                process = subprocess.Popen(["python3", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                pids = [int(pid) for pid in process.stdout.readline().split()]
                process.kill()
                process.wait()
                process.stdin.close()
                process.stdout.close()
                found += [f"launcher killed when {step}: process {pid} stays" for pid in pids if not gone(pid)]
                found += [] if len(pids) > 0 else [f"{step}: the launcher did not get so far"]
        end = time.monotonic() + 5
        while warm.server.status()["status"]["running"] and time.monotonic() < end:
            time.sleep(0.05)
        running = warm.server.status()["status"]["running"]
        found += [f"{running} runs are counted"] if running else []
    reap()
    return found


def what_workers_share(python, options):
    """Random numbers and keys of workers of one run, and of two runs of one server, are all different."""
    seen = []
    text = (client.HERE / "randomness.py").read_text()
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/seen.py", "w") as file:
            file.write((client.HERE / "seen.py").read_text())
        with Warm(python, client.PRELOAD.replace(",noisy_import", ""), {"PYTHONPATH": folder}) as warm:
            for run in (warm.join(text), warm.join(text)):
                for _ in range(2):
                    reading, writing = os.pipe()
                    worker = run.start([warm.null[0], writing, 2])
                    os.close(writing)
                    worker.go()
                    with os.fdopen(reading) as file:
                        seen.append(file.read().splitlines())
                    worker.ended_by(SHORT_SECONDS)
                run.stop()
    found = [f"two workers have the same: {lines[0]}" for lines in zip(*seen) if len(set(lines)) != len(lines)]
    return found + ([] if len(seen[0]) == 6 else [f"the probe printed {seen[0]}"])


def state(pid):
    """Descriptors, children and memory of a process."""
    with open(f"/proc/{pid}/status") as file:
        memory = [int(line.split()[1]) for line in file if line.startswith("VmRSS")][0]
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return len(os.listdir(f"/proc/{pid}/fd")), len(file.read().split()), memory


def many_starts(python, options):
    """Starts many workers in many runs: neither descriptors nor processes nor memory may grow, in either server."""
    found = []
    with Warm(python) as warm:
        def one_run(count):
            run = warm.join("import json")
            pid = run.answer["ready"]["pid"]
            states = []
            for _ in range(count):
                worker = run.start()
                worker.go()
                if worker.ended_by(SHORT_SECONDS) != 0:
                    found.append("a worker failed")
                states.append(state(pid) if len(states) in (10, count - 1) else None)
            run.stop()
            return states[10], states[-1]
        one_run(12)
        time.sleep(0.2)
        before = state(warm.server.process.pid)
        ours = len(os.listdir("/proc/self/fd"))
        began = time.monotonic()
        for _ in range(5):
            early, late = one_run(options.starts // 5)
            if late[0] > early[0] + 2 or late[1] > early[1] + 1 or late[2] > early[2] + 1024:
                found.append(f"a run server had {early} and then {late}")
        seconds = (time.monotonic() - began) / options.starts
        for _ in range(options.starts // 10):
            warm.join().stop()
        time.sleep(0.5)
        after = state(warm.server.process.pid)
        if after[:2] != before[:2] or after[2] > before[2] + 1024:
            found.append(f"the warm server had {before} and then {after}")
        found += ["descriptors of the client grew"] if len(os.listdir("/proc/self/fd")) != ours else []
    print(f"    {options.starts} starts, {seconds * 1000:.1f} ms from request to end")
    return found


def measure(python, preload, variables, text):
    """Measures, and never fails: join until ready, request until pid, request until first line."""
    times = {"join": [], "pid": [], "first line": []}
    with Warm(python, preload, variables) as warm:
        seconds = warm.server.status()["status"]["seconds"]
        for _ in range(10):
            began = time.monotonic()
            run = warm.join(text)
            times["join"].append(time.monotonic() - began)
            for _ in range(4):
                reading, writing = os.pipe()
                began = time.monotonic()
                worker = run.start([warm.null[0], writing, writing])
                times["pid"].append(time.monotonic() - began)
                worker.go()
                os.read(reading, 1)
                times["first line"].append(time.monotonic() - began)
                os.close(reading)
                os.close(writing)
                os.kill(worker.pid, signal.SIGKILL)
                worker.ended_by(SHORT_SECONDS)
            run.stop()
    shown = [f"{name} {sorted(each)[len(each) // 2] * 1000:.1f} ms (worst {max(each) * 1000:.1f})"
             for name, each in times.items()]
    print(f"    medians: {', '.join(shown)}; imports took {seconds} s")
    return []


def latency(python, options):
    """Measures a server of small modules."""
    return measure(python, SMALL, {}, "import os; os.write(1, b'x'); import time; time.sleep(60)")


def torch_latency(python, options):
    """Measures a server of PyTorch."""
    return measure(python, "torch", {"OMP_NUM_THREADS": "1"},
                   "import torch, os; os.write(1, b'x'); import time; time.sleep(60)")


NAMES = {check.__name__.replace("_", " "): check for check in (
    left_behind, killed, launcher_killed, what_workers_share, many_starts, latency, torch_latency)}
