"""The steps from the fork to the first line of the script, which are the same for every way of forking."""

import os

import select

from enn_forkserver import become, restart
from enn_forkserver.frames import send

GO_SECONDS_MAX = 60


def fork(pending):
    """Forks with a pipe to the new process, whose end of it is the one to read from.

    Returns the pid, 0 in the new process, and the end of the pipe; None where there is none, which the launcher is told.
    """
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        send(pending.connection, {"refuse": f"the fork server cannot fork: {error}"})
        pending.close()
        return None
    ours, other = (reading, writing) if pid == 0 else (writing, reading)
    os.close(other)
    return pid, ours


def begin(server, request, pending, attach):
    """In the new process. `attach` gives it its place among the processes and returns the descriptor of its go.

    Returns when CPython may run the script; ends the process when nobody wants the worker.
    """
    connection = pending.connection
    try:
        connection.setblocking(True)
        source = attach()
        send(connection, {"pid": os.getpid()})
        if source != connection.fileno():
            connection.close()
        if not told_to_go(source):
            os._exit(restart.EXIT_BROKEN)
    except BaseException as error:
        try:
            send(connection, {"refuse": f"the worker could not be forked: {error}"})
        finally:
            os._exit(restart.EXIT_BROKEN)
    try:
        server.control.detach()
        connection.detach()
        become.become(request, pending.given, server.preloaded)
    except BaseException as error:
        restart.note(request, f"a forked worker could not be completed and is executed as usual: {error!r}")
        become.take_streams(pending.given)
        become.close_all_but(server.preloaded.inherited)
        restart.again(request, server.preloaded.mask)


def told_to_go(source):
    """Waits for the launcher's go; False at the end of the connection, or when it takes too long."""
    ready, _, _ = select.select([source], [], [], GO_SECONDS_MAX)
    return bool(ready) and os.read(source, 1) == b"g"
