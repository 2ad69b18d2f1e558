"""Turns a forked process into the worker, step by step, until it cannot be distinguished from an executed one."""

import atexit
import os
import sys
import time

import _signal
import posix

from enn_forkserver import procfs, refresh, restart, streams


def become(request, given, preloaded):
    """Gives the process everything that a new process has of its own; called after the go."""
    take_streams(given)
    close_all_but(preloaded.inherited)
    os.chdir(request.cwd)
    os.umask(request.umask)
    restart.set_signals(request.ignored)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, preloaded.mask)
    environment = preloaded.environment.of_worker(request.environment)
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
    stash = preloaded.stash
    stash.environment = environment
    atexit.register(stash.stop_comparing)
    stash.worker = restart.Worker(request, preloaded.mask, sys.argv[0])


def take_streams(given):
    """Moves the descriptors that came with the request to the numbers of the standard streams."""
    for number, descriptor in enumerate(given):
        os.dup2(descriptor, number, inheritable=True)


def close_all_but(inherited):
    """Closes the server's own descriptors; those that it has inherited, an executed worker has too."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number not in inherited:
            try:
                os.close(number)
            except OSError:
                pass


def set_environment(environment):
    """Sets os.environ, os.environb, posix.environ and the C library's environment."""
    os.environ.clear()
    os.environ.update(environment)
    posix.environ.clear()
    posix.environ.update((os.fsencode(name), os.fsencode(value)) for name, value in environment.items())
    time.tzset()
