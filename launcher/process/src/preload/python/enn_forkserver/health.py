"""The checks whether workers may be forked from this process: before any import, and a rehearsal afterwards."""

import os
import sys
import time

import _signal
import select

WAIT_SECONDS_MAX = 60
SIGNAL_LINES = (b"SigCgt:", b"SigIgn:", b"SigBlk:")
# NVML opens devices and their control, and the library keeps them; only CUDA opens the one for unified memory.
NVIDIA = "/dev/nvidia"
CUDA_ONLY = "/dev/nvidia-uvm"
VERSION_MIN = (3, 10)


def version():
    """The interpreter's version, as 3.11.7."""
    return ".".join(str(part) for part in sys.version_info[:3])


def why_not():
    """Why this interpreter, or how it was started, cannot serve; None when it can."""
    if not sys.platform.startswith("linux"):
        return f"the system is {sys.platform}, expected Linux"
    if sys.implementation.name != "cpython":
        return f"the interpreter is {sys.implementation.name}, expected CPython"
    if sys.version_info < VERSION_MIN:
        return f"the interpreter is Python {sys.version_info[0]}.{sys.version_info[1]}, expected 3.10 or newer"
    if "t" in getattr(sys, "abiflags", ""):
        return "the interpreter is a free-threaded build"
    if sys.flags.inspect or sys.flags.interactive:
        return "the interpreter is interactive"
    seen = imports_are_seen()
    if seen is not None:
        return seen
    if sys.gettrace() is not None or sys.getprofile() is not None or monitored():
        return "a tracer or profiler is active before the script begins"
    for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
        if os.environ.get(name):
            return f"{name} asks for coverage around the script"
    return None


def imports_are_seen():
    """Whether the user asked to see, for each process, something that imports do; a forked worker does not import."""
    if sys.flags.verbose:
        return "Python was asked to print its imports (-v)"
    for name, variable in (("importtime", "PYTHONPROFILEIMPORTTIME"), ("tracemalloc", "PYTHONTRACEMALLOC"),
                           ("perf", "PYTHONPERFSUPPORT"), ("perf_jit", "PYTHON_PERF_JIT_SUPPORT")):
        if sys._xoptions.get(name) or os.environ.get(variable, "0") not in ("", "0"):
            return f"Python was asked for {name} (-X {name} or {variable})"
    return None


def monitored():
    """Whether a tool uses sys.monitoring (Python 3.12)."""
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(monitoring.get_tool(number) for number in range(6))


def opened():
    """Returns what each open descriptor refers to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass
    return found


def by_nvml(target):
    """Whether the open file is one that NVML keeps, and that a forked process goes on using."""
    return target.startswith(NVIDIA) and not target.startswith(CUDA_ONLY)


def kept_by_nvml():
    """The descriptors that NVML has open."""
    return {number for number, target in opened().items() if by_nvml(target)}


def limits():
    """The limits of resources, as text."""
    with open("/proc/self/limits", "rb", buffering=0) as file:
        return file.read(8192)


def caught_signals():
    """The signals that are blocked, ignored or have a handler, as the kernel tells it.

    Without the two that the C library takes for itself when the first thread is made, numpy's for instance.
    """
    with open("/proc/self/status", "rb", buffering=0) as file:
        lines = [line.split() for line in file.read(8192).splitlines()]
    return {line[0]: int(line[1], 16) & ~(3 << 31) for line in lines if line[:1] and line[0] in SIGNAL_LINES}


class Before:
    """The state of the process before it imports, to compare with afterwards."""

    def __init__(self):
        self.opened = opened()
        self.signals = caught_signals()
        self.limits = limits()
        self.tracing = (sys.gettrace(), sys.getprofile(), sys.excepthook)

    def why_not(self, own):
        """Why no worker can be forked now that everything is imported; None when all is well."""
        outcome = rehearse()
        if outcome is not None:
            return outcome
        names = thread_names()
        if len(names) > 1:
            return f"an import left a thread running: {', '.join(names[1:])}"
        for number, target in opened().items():
            if number not in own and self.opened.get(number) != target and not by_nvml(target):
                return f"an import left {target} open"
        if caught_signals() != self.signals:
            return "an import changed how signals are handled"
        if limits() != self.limits:
            return "an import changed a limit of resources"
        if (sys.gettrace(), sys.getprofile(), sys.excepthook) != self.tracing:
            return "an import set a tracer, a profiler or an excepthook"
        if sys.stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__ or sys.stdin is not sys.__stdin__:
            return "an import replaced a standard stream"
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return "an import left a child process running"
        except OSError:
            return None


def thread_names():
    """The names of this process's threads, its own first."""
    names = []
    for thread in sorted(os.listdir("/proc/self/task"), key=int):
        try:
            with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
                names.append(file.read().strip())
        except OSError:
            pass
    return names


def rehearse():
    """Forks once, as for a worker, and says why it failed.

    Where an import has opened a device, the child makes a tensor on one, as a worker would. Where none is open, CUDA has
    not been initialised either, and the second or two that a context takes are saved.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "an import initialised CUDA"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            why = ""
            if torch is not None and any(target.startswith(NVIDIA) for target in opened().values()):
                why = on_device(torch)
            os.write(writing, why.encode("utf-8", "replace")[:4096])
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return collect(child, reading)
    finally:
        os.close(reading)


def on_device(torch):
    """In the child: uses the device as a worker would; what went wrong, as text."""
    try:
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
        return ""
    except Exception as error:
        return f"a forked process cannot use the device: {error}"


def collect(child, reading):
    """Waits for the rehearsal's child, with a limit, and returns why no worker can be forked, or None."""
    said = b""
    end = time.monotonic() + WAIT_SECONDS_MAX
    ended = False
    while not ended and time.monotonic() < end:
        ready, _, _ = select.select([reading], [], [], max(0, end - time.monotonic()))
        if ready:
            part = os.read(reading, 4096)
            said += part
            ended = not part
    if not ended:
        os.kill(child, _signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not ended:
        return f"a forked process did not end within {WAIT_SECONDS_MAX} seconds"
    if said:
        return said.decode("utf-8", "replace")
    if status != 0:
        return f"a forked process ended with wait status {status}"
    return None
