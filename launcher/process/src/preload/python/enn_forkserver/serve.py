"""The loop of the server: requests in, forked workers out."""

import os
import sys

import _socket
import select

from enn_forkserver import shadow
from enn_forkserver.command import Command
from enn_forkserver.frames import DESCRIPTORS_MAX, Request, passed_descriptors, send, sentence
from enn_forkserver.pending import Pending, close_late, patience, take

# select() takes descriptors below 1,024 only, and a worker may need two of them.
PENDING_MAX = 256


class Server:
    """Serves one run: its script, its requests, and its workers, which `children` forks and looks after."""

    def __init__(self, control, preloaded, children, cwd):
        self.control = control
        self.preloaded = preloaded
        self.children = children
        self.cwd = cwd
        self.head = list(sys.orig_argv[1:len(sys.orig_argv) - (len(sys.argv) - 1)])
        self.waiting = {}

    def run(self):
        """Serves until the launcher is gone; returns in a forked worker only, when it has become the worker."""
        while True:
            limits = [limit for limit in (patience(self.waiting), self.children.patience()) if limit is not None]
            sources = [self.control, *self.waiting, *self.children.watched()]
            ready, _, _ = select.select(sources, [], [], min(limits, default=None))
            for source in ready:
                if source is self.control:
                    self.accept()
                elif source not in self.waiting:
                    self.children.tell(source)
                elif take(self.waiting, source, self.answer):
                    return
            self.children.tidy()
            close_late(self.waiting)

    def accept(self):
        """A byte on the control socket brings the connection of a new request."""
        try:
            data, ancillary, _, _ = self.control.recvmsg(1, _socket.CMSG_SPACE(4 * DESCRIPTORS_MAX))
        except ConnectionError:
            data, ancillary = b"", ()
        descriptors = passed_descriptors(ancillary)
        if not data and not descriptors:
            self.children.end()
        for descriptor in descriptors:
            try:
                connection = _socket.socket(fileno=descriptor)
            except OSError:
                os.close(descriptor)
                continue
            if len(self.waiting) < PENDING_MAX and len(self.children) < PENDING_MAX:
                self.waiting[connection] = Pending(connection)
            else:
                connection.close()

    def answer(self, pending):
        """Forks the worker that is asked for, or says why not. True in the worker."""
        request = Request(pending.frame())
        why = self.why_not(request, pending.given)
        if why is None:
            return self.children.fork(self, request, pending)
        send(pending.connection, {"refuse": sentence(why)})
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
        return self.preloaded.why_not(request, shadow.script_folder(sys.argv[0], command.kind, self.cwd))
