"""Executing a worker anew in its own process, and whether that can still be done without being seen."""

import os
import sys

import _signal
import _socket
import fcntl
import resource
import struct

from enn_forkserver.frames import json_text, sentence

_EXTERNAL = sys.modules["_frozen_importlib_external"]
_FIONREAD = 0x541B
EXIT_BROKEN = 71


def note(request, why):
    """Sends one sentence to the launcher; nothing waits for it or depends on it."""
    channel = None
    try:
        channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        text = json_text({"pid": os.getpid(), "why": sentence(why)})
        channel.sendto(text.encode("ascii"), _socket.MSG_DONTWAIT, request.notes)
    except OSError:
        pass
    finally:
        if channel is not None:
            channel.close()


class Worker:
    """A worker as it was right before the first line of its script, to compare with later."""

    def __init__(self, request, mask, script):
        self.request = request
        self.mask = mask
        self.from_stdin = script == "-"
        self.pid = os.getpid()
        self.own_bytes = 0
        self.told = set()
        self.write_atomic = _EXTERNAL._write_atomic
        _EXTERNAL._write_atomic = self._writing_bytecode
        self.descriptors = descriptors()
        self.standard = standard_files()
        self.waiting = stdin_position()
        self.children = children_seen()
        self.written = bytes_written()

    def _writing_bytecode(self, *args, **kwargs):
        """Importing a module of the user's own may write its .pyc file; that is no output."""
        before = bytes_written()
        try:
            return self.write_atomic(*args, **kwargs)
        finally:
            after = bytes_written()
            if before is not None and after is not None:
                self.own_bytes += after - before

    def settled(self):
        """All modules are handed out: nothing will be compared any more."""
        _EXTERNAL._write_atomic = self.write_atomic

    def touched(self):
        """What the script has done that must not be done twice, as the end of a sentence; None when nothing is seen.

        Seen are: every byte written by a write call to anything (the kernel counts them), a descriptor that is open and
        was not, a changed standard stream, what was read from standard input, a thread, a child, also one that has been
        waited for. Not seen are: a folder made, a file renamed, removed or created empty and closed again, a message
        sent on a socket that is closed again, a file changed through a mapping, and what arrived on a pipe after the
        start and was read from it. Text that still waits in a buffer of Python is no output: it vanishes with the
        process and is printed anew.
        """
        if os.getpid() != self.pid:
            return "this is a child of the worker"
        if self.from_stdin:
            return "the script is read from standard input"
        written = bytes_written()
        if written is None or self.written is None:
            return "the system does not tell whether anything was written"
        if written - self.own_bytes != self.written:
            return "it had already written something"
        if descriptors() != self.descriptors or standard_files() != self.standard:
            return "it had already opened a file"
        if stdin_position() != self.waiting:
            return "it had already read its standard input"
        if len(os.listdir("/proc/self/task")) > 1:
            return "it had already started a thread"
        if children_seen() != self.children:
            return "it had already started a process"
        return None


def bytes_written():
    """All bytes that this process has written by write calls; None where the kernel does not count them."""
    try:
        with open("/proc/self/io", "rb", buffering=0) as file:
            for line in file.read(4096).splitlines():
                if line.startswith(b"wchar:"):
                    return int(line[6:])
    except OSError:
        pass
    return None


def descriptors():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((name, os.readlink("/proc/self/fd/" + name)))
        except OSError:
            pass
    return found


def standard_files():
    found = []
    for number in range(3):
        try:
            about = os.fstat(number)
            found.append((about.st_dev, about.st_ino, about.st_rdev))
        except OSError:
            found.append(None)
    return found


def stdin_position():
    """How far standard input has been read: its position, or what waits in it."""
    try:
        return os.lseek(0, 0, os.SEEK_CUR)
    except OSError:
        pass
    try:
        return struct.unpack("i", fcntl.ioctl(0, _FIONREAD, b"\0\0\0\0"))[0]
    except OSError:
        return None


def children_seen():
    """Whether there is a child, and whether there has been one."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        alive = True
    except OSError:
        alive = False
    return alive, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0


def again_if_possible(worker, why, otherwise):
    """Executes the worker anew, or tells what is ignored when that would be seen."""
    touched = worker.touched()
    if touched is None:
        note(worker.request, f"{why}: the worker is executed as usual")
        again(worker.request, worker.mask)
    sentence = f"{why}, and {touched}: {otherwise}"
    if sentence not in worker.told:
        worker.told.add(sentence)
        note(worker.request, sentence)


def again(request, mask):
    """Executes the worker as the launcher would have done: same process, same standard streams. Does not return."""
    try:
        for timer in (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF):
            _signal.setitimer(timer, 0)
        set_signals(request.ignored)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        os.chdir(request.cwd)
        os.umask(request.umask)
        # What Python ignores for itself must not reach the new program as inherited.
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
            if number not in request.ignored:
                _signal.signal(number, _signal.SIG_DFL)
        os.execvpe(request.argv0, [request.argv0, *request.args], request.environment)
    finally:
        os._exit(EXIT_BROKEN)


def set_signals(ignored):
    """The dispositions of a Python that was started with these signals ignored."""
    own = {_signal.SIGPIPE, _signal.SIGXFSZ}
    for number in range(1, _signal.NSIG):
        if number in ignored or number in own:
            want = _signal.SIG_IGN
        elif number == _signal.SIGINT:
            want = _signal.default_int_handler
        else:
            want = _signal.SIG_DFL
        try:
            now = _signal.getsignal(number)
            # None is a handler of C code that was there before the imports: faulthandler's, which -X asks for.
            if now is not None and now != want:
                _signal.signal(number, want)
        except (OSError, ValueError):
            pass
