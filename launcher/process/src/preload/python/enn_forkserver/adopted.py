"""Workers that become the launcher's own children: forked twice, the process between reaped here."""

import os

import _signal
import select

from enn_forkserver import birth, procfs
from enn_forkserver.frames import send

REAPED_SECONDS_MAX = 10


class Lost(Exception):
    """The launcher is gone or does not want this worker: the process must end."""


class Adopted:
    """Forks the workers of one job's server, which keeps nothing of them once they are adopted."""

    def __init__(self):
        # The middle processes that have not been reaped, by their pidfds: their pids, and the pipes of their workers.
        self.middles = {}

    def __len__(self):
        return len(self.middles)

    def watched(self):
        """The descriptors that the server's loop must wait for on behalf of the workers."""
        return self.middles

    def patience(self):
        """The seconds after which the loop should turn without an event."""
        return None

    def tell(self, pidfd):
        """The middle process has ended. Only now does the worker see the end of its pipe: it is adopted."""
        middle, writing = self.middles.pop(pidfd)
        os.waitpid(middle, 0)
        os.close(writing)
        os.close(pidfd)

    def tidy(self):
        """The work of each turn of the loop."""

    def end(self):
        """The launcher is gone; its workers were its own and end with it."""
        os._exit(0)

    def fork(self, server, request, pending):
        """Forks a worker; True in the worker, when it has become one."""
        forked = birth.fork(pending)
        if forked is None:
            return False
        middle, pipe = forked
        if middle == 0:
            self.fork_again(server, pending)
            birth.begin(server, request, pending, lambda: attach(request, pipe, pending.connection))
            return True
        pending.close()
        try:
            pidfd = os.pidfd_open(middle)
        except OSError:
            os.waitpid(middle, 0)
            os.close(pipe)
            return False
        # Not waited for here: to end takes a process of this size as long as to fork, and the next request is there.
        self.middles[pidfd] = (middle, pipe)
        return False

    def fork_again(self, server, pending):
        """In the middle process, which ends, and then in the worker, which returns."""
        try:
            # The ends of the other workers' pipes: they wait until nobody holds one.
            for _, writing in self.middles.values():
                os.close(writing)
            if os.fork() != 0:
                os._exit(0)
            for other in server.waiting:
                other.close()
        except BaseException as error:
            try:
                send(pending.connection, {"refuse": f"the worker could not be forked: {error}"})
            finally:
                os._exit(birth.restart.EXIT_BROKEN)


def attach(request, gone, connection):
    """A session of its own, and the launcher as its parent, which says go on the connection."""
    os.setsid()
    ready, _, _ = select.select([gone], [], [], REAPED_SECONDS_MAX)
    if not ready:
        raise Lost("the server did not reap the middle process")
    os.close(gone)
    procfs.die_with_parent(_signal.SIGKILL)
    if os.getppid() != request.launcher:
        raise Lost(f"the parent is {os.getppid()}, expected the launcher, {request.launcher}")
    return connection.fileno()
