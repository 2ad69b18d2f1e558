"""What a check starts ends with the check: with kill -9, when it is asked to end, and when it fails."""

import os
import signal
import subprocess
import sys
import time

SECONDS_MAX = 60
# A check that has started something, says so, and goes on, or not.
CHECK = """
import subprocess, sys, time
from _group import Group
with Group() as group:
    started = subprocess.Popen(["sleep", "1000"], process_group=group.id)
    print(group.id, started.pid, flush=True)
    sys.stdin.read(1) and sys.exit("failed")
    started.wait()
"""


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ended(how):
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
    check = subprocess.Popen([sys.executable, "-c", CHECK], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    started = [int(pid) for pid in check.stdout.readline().split()]
    assert len(started) == 2 and all(map(alive, started)), started
    how(check)
    check.stdin.close()
    code, told = check.wait(SECONDS_MAX), check.stderr.read().decode()
    until = time.monotonic() + SECONDS_MAX
    while any(map(alive, started)):
        assert time.monotonic() < until, f"{started} live on"
        time.sleep(0.01)
    return code, told


def fail(check):
    check.stdin.write(b"x")
    check.stdin.flush()


assert ended(lambda check: check.kill()) == (-signal.SIGKILL, "")
assert ended(lambda check: check.terminate()) == (1, "ended from outside\n")
code, told = ended(lambda check: check.send_signal(signal.SIGINT))
assert code == -signal.SIGINT and "KeyboardInterrupt" in told, (code, told)
assert ended(fail) == (1, "failed\n")
print("nothing outlives a check")
