"""The loop of the server: requests in, forked workers out."""

import os
import struct
import sys
import time

import _socket
import select

from enn_forkserver import become, guard, restart, shadow
from enn_forkserver.command import Command
from enn_forkserver.files import Files
from enn_forkserver.frames import (DESCRIPTORS_MAX, FRAME_BYTES_MAX, Malformed, Request, frame, passed_descriptors,
                                   sentence)

REQUEST_SECONDS_MAX = 2.0
GO_SECONDS_MAX = 60
# select() takes descriptors below 1,024 only.
PENDING_MAX = 256
EXIT_BROKEN = 71


class Pending:
    """A connection whose request has not come whole yet."""

    def __init__(self, connection):
        self.connection = connection
        self.body = bytearray()
        self.given = []
        self.deadline = time.monotonic() + REQUEST_SECONDS_MAX

    def read(self):
        """Takes what has come; True when the frame is whole, EOFError when the other side is gone."""
        data, ancillary, _, _ = self.connection.recvmsg(1 << 16, _socket.CMSG_SPACE(4 * DESCRIPTORS_MAX))
        self.given.extend(passed_descriptors(ancillary))
        if not data:
            raise EOFError
        if len(self.given) > DESCRIPTORS_MAX:
            raise Malformed(f"the request came with more than {DESCRIPTORS_MAX} descriptors")
        self.body += data
        if len(self.body) < 4:
            return False
        size = struct.unpack_from("<I", self.body)[0]
        if size > FRAME_BYTES_MAX:
            raise Malformed(f"the request announces {size} bytes, expected at most {FRAME_BYTES_MAX}")
        if len(self.body) > 4 + size:
            raise Malformed("bytes follow the request")
        return len(self.body) == 4 + size

    def close(self):
        for descriptor in self.given:
            os.close(descriptor)
        self.given = []
        self.connection.close()


class Server:
    """What the server knows of itself, and the loop."""

    def __init__(self, control, environment, inherited, mask):
        self.control = control
        self.environment = environment
        self.inherited = inherited
        self.mask = mask
        self.cwd = os.getcwd()
        self.head = list(sys.orig_argv[1:len(sys.orig_argv) - (len(sys.argv) - 1)])
        self.stash = None
        self.files = None
        self.looked_up = {}
        # The middle processes that have not been reaped, by their pidfds: their pids, and the pipes of their workers.
        self.middles = {}

    def run(self, stash):
        """Serves until the launcher is gone; returns in a forked worker only, when it has become the worker."""
        self.stash = stash
        self.looked_up = frozenset(stash.looked_up())
        self.files = Files(stash.hidden)
        waiting = {}
        while True:
            limit = min((each.deadline for each in waiting.values()), default=None)
            wait = None if limit is None else max(0.0, limit - time.monotonic())
            ready, _, _ = select.select([*self.middles, self.control, *waiting], [], [], wait)
            for connection in ready:
                if connection in self.middles:
                    self.reap(connection)
                elif connection is self.control:
                    self.accept(waiting)
                elif self.take(waiting, connection):
                    return
            for connection in [each for each, pending in waiting.items() if pending.deadline < time.monotonic()]:
                waiting.pop(connection).close()

    def accept(self, waiting):
        """A byte on the control socket brings the connection of a new request."""
        data, ancillary, _, _ = self.control.recvmsg(1, _socket.CMSG_SPACE(4 * DESCRIPTORS_MAX))
        descriptors = passed_descriptors(ancillary)
        if not data and not descriptors:
            os._exit(0)
        for descriptor in descriptors:
            try:
                connection = _socket.socket(fileno=descriptor)
            except OSError:
                os.close(descriptor)
                continue
            connection.setblocking(False)
            if len(waiting) < PENDING_MAX and len(self.middles) < PENDING_MAX:
                waiting[connection] = Pending(connection)
            else:
                connection.close()

    def take(self, waiting, connection):
        """Goes on with one request. True in a forked worker."""
        pending = waiting[connection]
        try:
            if not pending.read():
                return False
            del waiting[connection]
            request = Request(bytes(pending.body[4:]))
            why = self.why_not(request, pending.given)
            if why is not None:
                send(connection, {"refuse": sentence(why)})
                return self.end(pending)
            return self.fork(request, pending, waiting)
        except BlockingIOError:
            return False
        except Malformed as error:
            send(connection, {"refuse": str(error)})
        except (EOFError, OSError):
            pass
        waiting.pop(connection, None)
        return self.end(pending)

    @staticmethod
    def end(pending):
        pending.close()
        return False

    def why_not(self, request, given):
        """Why the worker must be executed; None when it can be forked."""
        if len(given) < 3:
            return f"the request came with {len(given)} descriptors, expected 3"
        command = Command(request.args)
        request.rest = len(command.rest)
        if command.head != self.head:
            return f"the worker runs {' '.join(command.head)}, the fork server was started for {' '.join(self.head)}"
        if request.argv0 != sys.orig_argv[0]:
            return (f"the interpreter is {request.argv0}, the fork server was started as {sys.orig_argv[0]}: a wrapper "
                    "or a shim that starts Python cannot be imitated")
        if request.cwd != self.cwd:
            return f"the working directory is {request.cwd}, that of the fork server is {self.cwd}"
        changed = guard.difference(self.environment.given, request.environment, self.looked_up, at_start=True)
        if "/" not in request.argv0 and self.environment.given.get("PATH") != request.environment.get("PATH"):
            changed.append("PATH")
        if changed:
            return f"its environment differs from that of the fork server: {', '.join(changed)}"
        file = self.files.changed()
        if file is not None:
            return f"{file} has changed since the fork server imported it"
        beside = shadow.beside_script(self.stash, shadow.script_folder(sys.argv[0], command.kind, self.cwd))
        if beside:
            return f"modules beside the script have the names of preloaded ones: {', '.join(beside)}"
        return None

    def fork(self, request, pending, waiting):
        """Forks twice, so that the launcher becomes the parent, and reaps the process between. True in the worker."""
        reading, writing = os.pipe()
        try:
            middle = os.fork()
        except OSError as error:
            os.close(reading)
            os.close(writing)
            send(pending.connection, {"refuse": f"the fork server cannot fork: {error}"})
            return self.end(pending)
        if middle == 0:
            return self.middle(request, pending, waiting, (reading, writing))
        os.close(reading)
        pending.close()
        try:
            pidfd = os.pidfd_open(middle)
        except OSError:
            os.waitpid(middle, 0)
            os.close(writing)
            return False
        # Not waited for here: to end takes a process of this size as long as to fork, and the next request is there.
        self.middles[pidfd] = (middle, writing)
        return False

    def reap(self, pidfd):
        """Only now does the worker see the end of its pipe: the middle process is gone, and its worker adopted."""
        middle, writing = self.middles.pop(pidfd)
        os.waitpid(middle, 0)
        os.close(writing)
        os.close(pidfd)

    def middle(self, request, pending, waiting, pipe):
        """In the middle process, and after the second fork in the worker."""
        connection = pending.connection
        try:
            # The ends of the other workers' pipes: they wait until nobody holds one.
            for _, writing in self.middles.values():
                os.close(writing)
            os.close(pipe[1])
            if os.fork() != 0:
                os._exit(0)
            for other in waiting:
                other.close()
            connection.setblocking(True)
            become.attach(request, pipe[0])
            send(connection, {"pid": os.getpid()})
            connection.settimeout(GO_SECONDS_MAX)
            if connection.recv(1) != b"g":
                os._exit(EXIT_BROKEN)
        except BaseException as error:
            try:
                send(connection, {"refuse": f"the worker could not be forked: {error}"})
            finally:
                os._exit(EXIT_BROKEN)
        try:
            self.control.detach()
            connection.detach()
            become.become(request, pending.given, self, self.stash)
        except BaseException as error:
            restart.note(request, f"a forked worker could not be completed and is executed as usual: {error!r}")
            for number, descriptor in enumerate(pending.given):
                try:
                    os.dup2(descriptor, number, inheritable=True)
                except OSError:
                    pass
            become.close_all_but(self.inherited)
            restart.again(request, self.mask)
        return True


def send(connection, value):
    """Sends one frame; a launcher that is gone is no error."""
    try:
        connection.setblocking(True)
        connection.settimeout(REQUEST_SECONDS_MAX)
        connection.sendall(frame(value))
    except OSError:
        pass
