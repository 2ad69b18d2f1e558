"""Attributes that an executed worker inherits from its launcher, and a forked one from the starter of the warm server.

The server of a run takes over what a process may change. The launcher compares the rest, and does not use a server that
differs.
"""

import os

import resource

LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
CGROUPS = "/sys/fs/cgroup"
# Where the second version is beside the first one.
UNIFIED = "unified"


def take_over(launcher):
    """Makes this process like the launcher; raises where that is not allowed."""
    for number in LIMITS:
        limit = resource.prlimit(launcher, number)
        if limit != resource.getrlimit(number):
            resource.setrlimit(number, limit)
    nice = os.getpriority(os.PRIO_PROCESS, launcher)
    if nice != os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    oom = read(launcher, "oom_score_adj")
    if oom != read("self", "oom_score_adj"):
        write("/proc/self/oom_score_adj", oom)
    own = read("self", "cgroup").splitlines()
    for line in read(launcher, "cgroup").splitlines():
        if line not in own:
            move(line)


def move(line):
    """Enters a control group, as /proc/PID/cgroup names it."""
    _, controllers, path = line.split(":", 2)
    hierarchy = controllers.removeprefix("name=")
    if not controllers and os.path.isdir(os.path.join(CGROUPS, UNIFIED)):
        hierarchy = UNIFIED
    write(os.path.join(CGROUPS, hierarchy, path.strip("/"), "cgroup.procs"), str(os.getpid()))


def read(process, name):
    with open(f"/proc/{process}/{name}", "rb", buffering=0) as file:
        return os.fsdecode(file.read(1 << 16))


def write(path, text):
    """Writes to a file of the kernel; where there is none, none is made."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, os.fsencode(text))
    finally:
        os.close(file)
