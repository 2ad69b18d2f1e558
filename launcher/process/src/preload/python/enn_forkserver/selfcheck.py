"""Proves that a worker forked here equals an executed one, before any run relies on it.

The warm server leans on an internal of the interpreter (see `config`). So a small program is executed and forked in
each of the ways to start one, and what it sees must be the same.
"""

import os
import struct
import sys
import time

import _signal
import _socket
import select

from enn_forkserver import become, procfs, restart
from enn_forkserver.frames import SCM_RIGHTS, SOL_SOCKET, JoinRequest, Request, frame

SECONDS_MAX = 60
OUTPUT_BYTES_MAX = 1 << 20
EXIT_CODE = 3
# Values that the server itself does not have: a mask for new files, an ignored signal.
UMASK = str(0o053)
IGNORED = str(int(_signal.SIGUSR1))
ARGS = (["-u", "dump.py", "a b", ""], ["-u", "-c", "exec(open('dump.py').read())", "a b", ""])
# Where the folder of the program is not on the path, no module is found in it.
MODULE_ARGS = () if getattr(sys.flags, "safe_path", False) else (["-u", "-m", "dump", "a b", ""],)
# Marks the result of a check in the worker that it forked.
IN_WORKER = object()


class Failed(Exception):
    """The forked process could not be compared, or differs from the executed one."""


class Trial:
    """One way to start the program: an executed process, and a run with a forked worker."""

    def __init__(self, warm, args, folder):
        self.warm = warm
        self.args = args
        preloaded = warm.preloaded
        variables = [f"{name}={value}" for name, value in preloaded.environment.given.items()]
        fields = ["1", str(os.getpid()), folder, UMASK, "", IGNORED, str(len(args)), *args, warm.argv0,
                  str(len(variables)), *variables]
        self.body = b"\0".join(os.fsencode(field) for field in fields)
        self.null = os.open(os.devnull, os.O_RDONLY)
        self.outputs = [os.memfd_create(name) for name in ("executed", "forked")]
        self.executed = self.execute(preloaded)
        self.control = None
        self.run = None

    def execute(self, preloaded):
        """Starts the executed process; its pid."""
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                become.take_streams([self.null, self.outputs[0], self.outputs[0]])
                become.close_all_but(preloaded.inherited)
                restart.again(Request(self.body), preloaded.mask)
            finally:
                os._exit(restart.EXIT_BROKEN)
        return child

    def join(self):
        """Forks the run server. True in its worker."""
        self.control, theirs = _socket.socketpair()
        self.control.settimeout(SECONDS_MAX)
        self.warm.private.append(self.control)
        request = JoinRequest(b"0\0\0" + self.body, [])
        self.run = self.warm.fork(request, theirs)
        if self.run != 0:
            theirs.close()
        return self.run == 0

    def finish(self, deadline):
        """Lets the worker run and compares; raises Failed where something is different."""
        answer = self.receive(self.control)
        if not answer.startswith(b'{"ready"'):
            raise Failed(f"a run server answers {answer[:200]!r}")
        connection, theirs = _socket.socketpair()
        connection.settimeout(SECONDS_MAX)
        pass_on(self.control, b"c", [theirs.fileno()])
        theirs.close()
        request = struct.pack("<I", len(self.body)) + self.body
        sent = pass_on(connection, request, [self.null, self.outputs[1], self.outputs[1]])
        connection.sendall(request[sent:])
        answer = self.receive(connection)
        if not answer.startswith(b'{"pid": '):
            raise Failed(f"a request is answered by {answer[:200]!r}")
        connection.sendall(b"g")
        wait_for(int(answer[8:-1]), deadline)
        connection.sendall(b"e")
        ending = self.receive(connection)
        connection.close()
        code = self.wait_for_executed(deadline)
        if code != EXIT_CODE or ending != frame({"exit": {"code": code}})[4:]:
            raise Failed(f"the program ended with {code} when it was executed, and when it was forked with {ending!r}")
        self.compare()

    def receive(self, connection):
        """The text of one frame."""
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack_from("<I", data)[0]:
            part = connection.recv(1 << 16)
            if not part:
                raise Failed("a forked process ended without an answer")
            data += part
        return data[4:]

    def wait_for_executed(self, deadline):
        wait_for(self.executed, deadline)
        code = os.waitstatus_to_exitcode(os.waitpid(self.executed, 0)[1])
        self.executed = None
        return code

    def compare(self):
        executed, forked = (os.pread(output, OUTPUT_BYTES_MAX, 0).decode("utf-8", "replace").splitlines()
                            for output in self.outputs)
        for one, other in zip(executed, forked):
            # A kernel that cannot be told of another command line shows as much of it as has room.
            if one != other and (procfs.can_move() or not one.startswith("cmdline: ")):
                raise Failed(f"a forked process differs from an executed one in {one.partition(':')[0]}, when Python "
                             f"is started with {' '.join(self.args[:2])}")
        if len(executed) != len(forked):
            raise Failed(f"a forked process prints {len(forked)} lines, an executed one {len(executed)}")

    def close(self):
        """Ends what may still run."""
        if self.executed is not None:
            os.kill(self.executed, _signal.SIGKILL)
            os.waitpid(self.executed, 0)
        if self.control is not None:
            self.control.close()
            self.warm.private.remove(self.control)
        if self.run is not None:
            os.waitpid(self.run, 0)
        for descriptor in (self.null, *self.outputs):
            os.close(descriptor)


def pass_on(connection, data, descriptors):
    """Sends bytes with descriptors; how many bytes went."""
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    return connection.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, rights)])


def wait_for(pid, deadline):
    """Waits for the end of a process, which nobody has reaped."""
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise Failed(f"the program did not end within {SECONDS_MAX} seconds")
    finally:
        os.close(pidfd)


def why_not(warm, folder):
    """Why this interpreter cannot be served; None when forked is as executed, and IN_WORKER in the workers."""
    deadline = time.monotonic() + SECONDS_MAX
    trials = []
    why = None
    try:
        for args in (*ARGS, *MODULE_ARGS):
            trials.append(Trial(warm, args, folder))
        for trial in trials:
            if trial.join():
                return IN_WORKER
        for trial in trials:
            trial.finish(deadline)
    except (Failed, OSError) as error:
        why = f"the self-check failed: {error}"
    for trial in trials:
        trial.close()
    return why
