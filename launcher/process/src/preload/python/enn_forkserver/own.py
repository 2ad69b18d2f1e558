"""Workers that stay children of the server that forked them: the server reports their exits to the launcher."""

import os
import time

import _signal

from enn_forkserver import birth, procfs
from enn_forkserver.frames import send

# At the end of a run: how often children are looked for anew, and how long those that were killed are waited for.
PASSES_MAX = 8
KILLED_SECONDS_MAX = 2.0
# How often orphans of scripts are looked for while nothing happens.
ORPHANS_SECONDS = 1.0


class Worker:
    """A worker as the server knows it."""

    def __init__(self, pid, writing):
        self.pid = pid
        self.writing = writing

    def go(self):
        """Passes the launcher's go on."""
        if self.writing is not None:
            try:
                os.write(self.writing, b"g")
            except OSError:
                # It has ended already, which the launcher sees by itself.
                pass
            self.close()

    def close(self):
        if self.writing is not None:
            os.close(self.writing)
            self.writing = None

    def ending(self):
        """Returns the exit for the launcher; None while the worker runs. It is not reaped: its pid stays in use."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return {"code" if found.si_code == os.CLD_EXITED else "signal": found.si_status}


class Own:
    """Forks the workers of a run's server, reports their exits, and cleans up after them."""

    def __init__(self, leave):
        # Whether processes that scripts left behind outlive the run.
        self.leave = leave
        self.workers = {}
        # Workers that nobody asks for any more, by the pidfds that tell their ends.
        self.dying = {}

    def __len__(self):
        return len(self.workers) + len(self.dying)

    def watched(self):
        """The descriptors that the server's loop must wait for on behalf of the workers."""
        return [*self.workers, *self.dying]

    def patience(self):
        """The seconds after which the loop should turn without an event."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return ORPHANS_SECONDS
        except ChildProcessError:
            return None

    def tell(self, source):
        """The launcher says something of a worker, or a killed one has ended."""
        if source in self.dying:
            os.waitpid(self.dying.pop(source), 0)
            os.close(source)
            return
        try:
            said = source.recv(64)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        worker = self.workers[source]
        if not said:
            self.dismiss(source)
        elif b"g" in said:
            worker.go()
        for _ in range(said.count(b"e")):
            send(source, {"exit": worker.ending()})

    def dismiss(self, connection):
        """The launcher is done with the worker, which it may not have let begin."""
        worker = self.workers.pop(connection)
        connection.close()
        worker.close()
        kill(worker.pid)
        try:
            self.dying[os.pidfd_open(worker.pid)] = worker.pid
        except OSError:
            os.waitpid(worker.pid, 0)

    def tidy(self):
        """Reaps the orphans of scripts that have ended."""
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is not None:
            known = {worker.pid for worker in self.workers.values()} | set(self.dying.values())
            for pid in procfs.children():
                if pid not in known:
                    reap(pid)

    def end(self):
        """The run is over: what it left running ends with it, or its workers only."""
        if self.leave:
            pids = [worker.pid for worker in self.workers.values()] + list(self.dying.values())
            end_all(pids)
        else:
            passes = 0
            while passes < PASSES_MAX and self.patience() is not None:
                end_all(procfs.children())
                passes += 1
        os._exit(0)

    def fork(self, server, request, pending):
        """Forks a worker; True in the worker, when it has become one."""
        parent = os.getpid()
        forked = birth.fork(pending)
        if forked is None:
            return False
        pid, pipe = forked
        if pid == 0:
            self.close_others(server)
            birth.begin(server, request, pending, lambda: attach(request, parent, pipe))
            return True
        pending.close_given()
        pending.connection.setblocking(False)
        self.workers[pending.connection] = Worker(pid, pipe)
        return False

    def close_others(self, server):
        """In a new worker: lets go of the connections and pipes of the others."""
        for connection, worker in self.workers.items():
            connection.close()
            worker.close()
        for other in server.waiting:
            other.close()


def attach(request, parent, reading):
    """A session of its own, the server as its parent, which passes the go on, and the launcher as one who may look."""
    os.setsid()
    procfs.die_with_parent(_signal.SIGKILL)
    if os.getppid() != parent:
        raise RuntimeError(f"the parent is {os.getppid()}, expected the server of the run, {parent}")
    procfs.let_trace(request.launcher)
    return reading


def kill(pid):
    """Kills a child, whose number is taken as long as it has not been reaped."""
    try:
        os.kill(pid, _signal.SIGKILL)
    except OSError:
        pass


def reap(pid):
    """Reaps the child if it has ended; whether it is gone."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def end_all(pids):
    """Kills the children and waits for them, with a limit: one may be stuck in the system."""
    for pid in pids:
        kill(pid)
    limit = time.monotonic() + KILLED_SECONDS_MAX
    while pids and time.monotonic() < limit:
        pids = [pid for pid in pids if not reap(pid)]
        if pids:
            time.sleep(0.005)
