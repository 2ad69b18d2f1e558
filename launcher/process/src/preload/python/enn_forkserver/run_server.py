"""The server of one run, forked from the warm server: from then on as if it had been started for this run."""

import os
import sys

import _socket
import fcntl

from enn_forkserver import procfs, surroundings
from enn_forkserver.command import Command
from enn_forkserver.frames import send
from enn_forkserver.own import Own
from enn_forkserver.restart import EXIT_BROKEN
from enn_forkserver.serve import Server


def serve(warm, request, connection):
    """Serves the run, whose control socket is the connection; returns in a worker only."""
    try:
        connection = place(request.inherited, connection)
        warm.preloaded.inherited |= {*request.inherited}
        server = prepare(warm, request, connection)
    except BaseException as error:
        send(connection, {"refuse": f"the warm server could not prepare the run: {error}"})
        os._exit(EXIT_BROKEN)
    send(connection, warm.preloaded.ready())
    connection.settimeout(None)
    try:
        server.run()
    except BaseException:
        # The process must not continue as the warm server that it was forked from.
        try:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(EXIT_BROKEN)


def place(inherited, connection):
    """Gives the descriptors that workers inherit their numbers; returns the connection, which may have had one of them."""
    if not inherited:
        return connection
    above = max(inherited) + 1
    connection = _socket.socket(fileno=move(connection.detach(), above))
    for number, given in [(number, move(given, above)) for number, given in inherited.items()]:
        try:
            os.fstat(number)
        except OSError:
            os.dup2(given, number, inheritable=True)
            os.close(given)
            continue
        raise RuntimeError(f"the descriptor {number}, which workers inherit, is in use")
    return connection


def move(descriptor, above):
    """The descriptor under a number that is none of the wanted ones."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
    os.close(descriptor)
    return moved


def prepare(warm, request, connection):
    """Makes the process the same as a server that was started for this run's command, in this run's folder."""
    os.setsid()
    procfs.adopt_orphans()
    surroundings.take_over(request.launcher)
    os.chdir(request.cwd)
    command = Command(request.args)
    warm.config.set(command, os.getcwd())
    sys.argv[:] = [command.script, *command.rest]
    sys.orig_argv[:] = [request.argv0, *request.args]
    return Server(connection, warm.preloaded, Own(request.leave), request.cwd)
