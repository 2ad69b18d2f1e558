"""Turns a forked process into the worker, step by step, until nothing tells it from an executed one."""

import atexit
import os
import sys
import time

import _signal
import posix
import select

from enn_forkserver import procfs, refresh, restart, streams


class Lost(Exception):
    """The launcher is gone or does not want this worker: the process ends."""


def attach(request, gone):
    """From the fork to the launcher's go: a session of its own, and the launcher as its parent."""
    os.setsid()
    wait_for_end(gone)
    procfs.die_with_parent(_signal.SIGKILL)
    if os.getppid() != request.launcher:
        raise Lost(f"the parent is {os.getppid()}, expected the launcher, {request.launcher}")


def wait_for_end(pipe, seconds=10):
    """Waits until the middle process has been reaped, which is told by the end of this pipe."""
    ready, _, _ = select.select([pipe], [], [], seconds)
    if not ready:
        raise Lost("the server did not reap the middle process")
    os.close(pipe)


def become(request, given, server, stash):
    """After the go: everything that a new process has of its own."""
    for number, descriptor in enumerate(given):
        os.dup2(descriptor, number, inheritable=True)
    close_all_but(server.inherited)
    os.chdir(request.cwd)
    os.umask(request.umask)
    restart.set_signals(request.ignored)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, server.mask)
    environment = server.environment.of_worker(request.environment)
    set_environment(environment)
    rest = len(sys.argv) - 1
    args = request.args
    sys.argv[1:] = args[len(args) - request.rest:] if request.rest else []
    sys.orig_argv[len(sys.orig_argv) - rest:] = sys.argv[1:]
    procfs.show(sys.orig_argv, request.environment)
    streams.renew_all()
    for finder in sys.path_importer_cache.values():
        if hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()
    for name, module in list(sys.modules.items()):
        refresh.module(name, module)
    stash.environment = environment
    atexit.register(stash.stop_comparing)
    stash.worker = restart.Worker(request, server.mask, sys.argv[0])


def close_all_but(inherited):
    """Closes what belongs to the server; what it has inherited, an executed worker has too."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number not in inherited:
            try:
                os.close(number)
            except OSError:
                pass


def set_environment(environment):
    """os.environ, os.environb, posix.environ and the C library's environment."""
    os.environ.clear()
    os.environ.update(environment)
    posix.environ.clear()
    posix.environ.update((os.fsencode(name), os.fsencode(value)) for name, value in environment.items())
    time.tzset()
