"""Prints the state of a process as a program sees it, a line each; the self-check runs it in every way of starting."""

import os
import signal
import sys


def stream(one):
    """Describes a standard stream."""
    return (type(one.buffer).__name__, one.mode, one.name, one.fileno(), one.encoding, one.errors, one.newlines,
            one.line_buffering, one.write_through, one.isatty())


def handler(number):
    """Describes the disposition of a signal: a number, or the name of a function."""
    found = signal.getsignal(number)
    return int(found) if isinstance(found, int) else getattr(found, "__name__", None)


def descriptors():
    """The open descriptors, without those that a preloaded library keeps: newer releases of libffi, and NVML."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            # The descriptor of the listing itself.
            continue
        if "/libffi.so" not in target and not target.startswith("/dev/nvidia"):
            found.append(int(name))
    return sorted(found)


def seen():
    """Everything, by what it is called in a sentence."""
    main = sys.modules["__main__"]
    spec = main.__spec__
    with open("/proc/self/cmdline", "rb") as file:
        line = file.read()
    with open("/proc/self/comm", "rb") as file:
        name = file.read()
    mask = os.umask(0)
    os.umask(mask)
    return {
        "sys.argv": sys.argv, "sys.orig_argv": sys.orig_argv, "sys.flags": sys.flags, "sys.path": sys.path,
        "sys.executable": (sys.executable, sys.prefix, sys.exec_prefix), "sys.warnoptions": sys.warnoptions,
        "the names of __main__": sorted(vars(main)), "__file__": getattr(main, "__file__", None),
        "__spec__": spec and (spec.name, spec.origin), "__loader__": type(main.__loader__).__name__,
        "the working directory": os.getcwd(), "os.environ": sorted(os.environ.items()), "cmdline": line, "comm": name,
        "the open descriptors": descriptors(),
        "the signals": [handler(number) for number in range(1, 32)], "the umask": mask,
        "the standard streams": [stream(one) for one in (sys.stdin, sys.stdout, sys.stderr)],
        "sys.modules": sorted(name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names),
    }


for key, value in seen().items():
    print(f"{key}: {value!r}")
sys.stdout.flush()
# Not the interpreter's own way out, which takes as long as everything that was preloaded is large.
os._exit(3)
