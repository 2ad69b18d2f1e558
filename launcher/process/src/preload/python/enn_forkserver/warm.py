"""The warm server: continues between runs, imports once, and forks a run server for each run."""

import os
import select
import struct
import sys
import time

import _signal
import _socket

from enn_forkserver import early, health, joining, memory, run_server, selfcheck, streams
from enn_forkserver.config import Config, Unknown
from enn_forkserver.folder import Folder
from enn_forkserver.frames import JoinRequest, Malformed, send, sentence
from enn_forkserver.pending import Pending, close_late, patience, take

CLIENTS_MAX = 64
RUNS_MAX = 256
_SO_PEERCRED = 17


class Listener:
    """The socket at which launchers query the server, and the conditions for its end."""

    def __init__(self, task, base):
        # It lives longer than the folder in which it was started may.
        os.chdir("/")
        self.socket = _socket.socket(fileno=task.number)
        self.socket.setblocking(False)
        self.folder = Folder(task.hook)
        self.early = early.names(base) | joining.SAME_NAMES
        self.idle_seconds = task.idle
        self.until = None
        if task.until:
            try:
                self.until = os.pidfd_open(int(task.until))
            except OSError:
                self.end({"refuse": f"the process {task.until}, with which the server should have ended, is gone"})
        self.descriptors = {task.number} if self.until is None else {task.number, self.until}

    def end(self, answer):
        """Removes the folder, answers the waiting clients, and ends the process."""
        self.folder.remove()
        streams.flush_all()
        connection = self.accept()
        while connection is not None:
            send(connection, answer)
            connection.close()
            connection = self.accept()
        os._exit(0)

    def accept(self):
        """Returns the next connection of this user, or None; those of others are closed without an answer."""
        while True:
            try:
                number, _ = self.socket._accept()
            except OSError:
                return None
            connection = _socket.socket(fileno=number)
            credentials = connection.getsockopt(_socket.SOL_SOCKET, _SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", credentials)[1] == os.geteuid():
                return connection
            connection.close()

    def serve(self, preloaded, collecting):
        """Serves until nobody needs it any more; returns in a worker of a run only."""
        preloaded.work_out(collecting)
        try:
            warm = Warm(self, preloaded)
        except (Unknown, OSError) as error:
            self.end({"refuse": str(error)})
        why = joining.never(preloaded) or selfcheck.why_not(warm, self.folder.check)
        if why is selfcheck.IN_WORKER:
            return
        if why is not None:
            self.end({"refuse": why})
        memory.use_huge_pages()
        self.folder.mark_ready()
        warm.run()


class Warm:
    """The loop: clients in, run servers out."""

    def __init__(self, listener, preloaded):
        self.listener = listener
        self.preloaded = preloaded
        self.config = Config()
        self.argv0 = sys.orig_argv[0]
        self.early = listener.early
        self.clients = {}
        # Other sockets that are no business of a run server.
        self.private = []
        # The run servers that have not been reaped, by the pidfds that tell their ends: their pids.
        self.runs = {}
        self.started = time.time()
        self.used = None
        self.count = 0
        self.quiet_since = time.monotonic()

    def run(self):
        """Serves; ends the process when nobody needs it, and returns in a worker only."""
        while True:
            sources = [*self.runs, *self.clients]
            if self.listener.until is not None:
                sources.append(self.listener.until)
            if len(self.clients) < CLIENTS_MAX:
                sources.append(self.listener.socket)
            ready, _, _ = select.select(sources, [], [], self.wait_seconds())
            for source in ready:
                if source in self.runs:
                    self.reap(source)
                elif source == self.listener.until:
                    self.end("the process with which the server ends has ended")
                elif source is self.listener.socket:
                    self.accept()
                elif take(self.clients, source, self.answer):
                    return
            close_late(self.clients)
            if not self.runs and not self.clients and self.idle_left() <= 0:
                self.end("the server has had no run for long enough")

    def idle_left(self):
        """The seconds until the server ends for want of runs."""
        return self.quiet_since + self.listener.idle_seconds - time.monotonic()

    def wait_seconds(self):
        limits = [limit for limit in (patience(self.clients),) if limit is not None]
        if not self.runs:
            limits.append(max(0.0, self.idle_left()))
        return min(limits, default=None)

    def end(self, why):
        for connection in list(self.clients):
            send(connection, {"refuse": why})
        self.listener.end({"refuse": why})

    def reap(self, pidfd):
        """A run is over."""
        os.waitpid(self.runs.pop(pidfd), 0)
        os.close(pidfd)
        self.quiet_since = time.monotonic()

    def accept(self):
        connection = self.listener.accept()
        if connection is not None:
            self.clients[connection] = Pending(connection)

    def answer(self, pending):
        """Does what the client asks for, and closes its connection here. True in a worker."""
        connection = pending.connection
        word, _, rest = pending.frame().partition(b"\0")
        if word == b"join":
            request = JoinRequest(rest, pending.given)
            why = joining.why_not(self, request)
            if why is None:
                return self.join(request, pending)
            send(connection, {"refuse": sentence(why)})
        elif word == b"status":
            send(connection, {"status": self.status()})
        elif word == b"stop":
            self.listener.folder.remove()
            send(connection, {"stopped": os.getpid()})
            connection.close()
            self.end("the server was told to stop")
        else:
            raise Malformed(f"the first word is {word[:40]!r}, expected join, status or stop")
        pending.close()
        return False

    def join(self, request, pending):
        """Starts the server of a run. True in a worker of it."""
        if len(self.runs) >= RUNS_MAX:
            send(pending.connection, {"refuse": f"the warm server serves {RUNS_MAX} runs already"})
            pending.close()
            return False
        child = self.fork(request, pending.connection)
        if child != 0:
            pending.close()
        if child:
            self.used = time.time()
            self.count += 1
            try:
                self.runs[os.pidfd_open(child)] = child
            except OSError:
                # Without a descriptor nobody would see it end.
                os.kill(child, _signal.SIGKILL)
                os.waitpid(child, 0)
        return child == 0

    def fork(self, request, connection):
        """Forks the server of a run: its pid, 0 in a worker, None where none was forked."""
        child = None
        try:
            child = os.fork()
        except OSError as error:
            send(connection, {"refuse": f"the warm server cannot fork: {error}"})
        if child == 0:
            self.let_go()
            run_server.serve(self, request, connection)
        return child

    def let_go(self):
        """In a run server: closes everything that belongs to the warm one."""
        self.listener.socket.close()
        for connection in (*self.clients, *self.private):
            connection.close()
        for pidfd in self.runs:
            os.close(pidfd)
        if self.listener.until is not None:
            os.close(self.listener.until)

    def status(self):
        version = self.preloaded.stash.hidden.get("torch.version")
        return {"pid": os.getpid(), "version": health.version(), "argv0": self.argv0,
                "executable": sys.executable, "modules": self.preloaded.names,
                "torch": None if version is None else str(version.__version__), "seconds": self.preloaded.seconds,
                "started": self.started, "used": self.used, "runs": self.count, "running": len(self.runs),
                "idle": self.listener.idle_seconds}
