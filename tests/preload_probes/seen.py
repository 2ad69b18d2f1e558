"""Canonical descriptions of what a program sees of its process; the probes print them."""

import sys


def show(name, value):
    """One line of a description."""
    sys.stdout.write(f"{name}: {plain(value)}\n")


def main_module():
    """__main__ and the command line."""
    main = sys.modules["__main__"]
    for name in sorted(vars(main)):
        if name not in ("seen", "__builtins__"):
            show("__main__." + name, vars(main)[name])
    show("__main__.__builtins__", type(vars(main)["__builtins__"]).__name__)
    show("argv", sys.argv)
    show("orig_argv", sys.orig_argv)
    show("path", sys.path)
    show("executable", (sys.executable, sys.prefix, sys.exec_prefix, sys.base_prefix))
    show("flags", sys.flags)
    show("warnoptions", sys.warnoptions)
    show("path_importer_cache", sorted(sys.path_importer_cache))
    for name in sorted(sys.modules):
        show("module", name)
    show("path_hooks", len(sys.path_hooks))
    show("dont_write_bytecode", sys.dont_write_bytecode)


def status(*names):
    """Lines of the kernel's description of the process that begin so.

    Of the signals without the two that the C library uses itself: whether they are ignored depends on how a parent was
    started, and no program can change it.
    """
    found = []
    for line in open("/proc/self/status"):
        if line.startswith(names):
            name, value = line.split(":", 1)
            if name in ("SigIgn", "SigCgt", "SigBlk"):
                value = f"{int(value, 16) & ~(3 << 31):016x}"
            found.append([name, *value.split()])
    return found


def plain(value):
    """A value without its address."""
    import re
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
