#!/usr/bin/env python3
"""The launcher's part of the fork server's protocol, and the comparison of executed with forked workers.

`client.py PYTHON` runs every case of cases.py twice with that interpreter, executed and forked, and compares exit code,
standard output and standard error byte for byte; then the checks of checks.py. It exits with 1 when anything differs.
`client.py PYTHON NAME…` runs some cases or checks, `--torch` the set that needs torch, `--warm` all of it with warm
servers and their own checks, `--starts N` sets the number of starts of the leak check, `--verbose` prints what was
seen. Needs Python 3.9 on Linux, nothing else.
"""

import argparse
import ctypes
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOOK = HERE.parents[1] / "launcher/process/src/preload/python"
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WAIT_SECONDS = 60
PRELOAD = "json,decimal,random,multiprocessing,multiprocessing.pool,multiprocessing.shared_memory,tempfile,logging," \
          "concurrent.futures,asyncio,email.message,inspect,unittest,threading,dataclasses,noisy_import"
TORCH_WAIT_SECONDS = 180


def subreaper():
    """Makes this process the parent of the orphans among its descendants."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def frame_bytes(body):
    return struct.pack("<I", len(body)) + body


def receive(channel, seconds):
    """One JSON frame; None at the end of the connection."""
    channel.settimeout(seconds)
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from("<I", data)[0]:
        part = channel.recv(1 << 16)
        if not part:
            return None
        data += part
    return json.loads(data[4:])


class Refused(Exception):
    """The server said why it does not fork."""


class Worker:
    """A worker that waits for the go, or runs."""

    def __init__(self, pid, connection):
        self.pid = pid
        self.connection = connection
        self.pidfd = os.pidfd_open(pid)

    def go(self):
        self.connection.sendall(b"g")

    def ended_by(self, seconds):
        """The exit code as subprocess has it; the process is killed when it takes longer."""
        ready, _, _ = select.select([self.pidfd], [], [], seconds)
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.connection.close()
        os.close(self.pidfd)
        return os.waitstatus_to_exitcode(status) if ready else "still running"


class Run:
    """The launcher's side of one run: its notes, and the requests that it sends over the control socket."""

    def __init__(self, python, cwd):
        self.python = python
        self.cwd = str(cwd or os.getcwd())
        self.folder = Path(tempfile.mkdtemp(prefix="preload."))
        self.notes_path = str(self.folder / "notes")
        self.notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notes.bind(self.notes_path)
        self.notes.setblocking(False)
        self.control = None

    def fields(self, args, environment, **other):
        """What a request says of a worker."""
        mask = os.umask(0)
        os.umask(mask)
        ignored = ",".join(str(int(number)) for number in other.get("ignored", ()))
        entries = [f"{name}={value}" for name, value in environment.items()]
        fields = ["1", str(other.get("parent", os.getpid())), other.get("cwd", self.cwd), str(other.get("umask", mask)),
                  self.notes_path, ignored, str(len(args)), *args, other.get("argv0", self.python), str(len(entries)),
                  *entries]
        return b"\0".join(os.fsencode(field) for field in fields)

    def request(self, args, environment, descriptors, **other):
        """Sends a request and returns the connection."""
        ours, theirs = socket.socketpair()
        socket.send_fds(self.control, [b"c"], [theirs.fileno()])
        theirs.close()
        whole = frame_bytes(self.fields(args, environment, **other))
        sent = socket.send_fds(ours, [whole], descriptors)
        if sent < len(whole):
            ours.sendall(whole[sent:])
        return ours

    def fork(self, args, environment, descriptors, **other):
        """A worker that waits for its go."""
        connection = self.request(args, environment, descriptors, **other)
        answer = receive(connection, WAIT_SECONDS)
        if answer is None or "refuse" in answer:
            connection.close()
            raise Refused(answer and answer["refuse"])
        return self.worker(answer["pid"], connection)

    def worker(self, pid, connection):
        return Worker(pid, connection)

    def told(self):
        """The notes that have come."""
        found = []
        while True:
            try:
                found.append(json.loads(self.notes.recv(1 << 16))["why"])
            except BlockingIOError:
                return found

    def close(self):
        """The end of the run."""
        if self.control is not None:
            self.control.close()
        self.notes.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def write_hook(folder, change):
    """The files of the server, one of them changed where a check wants that."""
    shutil.copytree(HOOK, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if change is not None:
        path = folder / "enn_forkserver" / change[0]
        text = path.read_text()
        assert change[1] in text, change
        path.write_text(text.replace(change[1], change[2]))


class Server(Run):
    """One fork server, started as the workers' own command."""

    def __init__(self, python, args, environment, preload=PRELOAD, cwd=None, what="serve", change=None):
        super().__init__(python, cwd)
        self.hook = self.folder / "hook"
        write_hook(self.hook, change)
        self.control, other = socket.socketpair()
        rest = environment.get("PYTHONPATH")
        full = dict(environment, PYTHONPATH=str(self.hook) + (":" + rest if rest else ""), ENN_FORKSERVER_WHAT=what,
                    ENN_FORKSERVER_FD=str(other.fileno()), ENN_FORKSERVER_PRELOAD=preload)
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python, *args], env=full, cwd=self.cwd, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL,
            stdout=self.errors, stderr=self.errors, start_new_session=True,
            preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        other.close()
        self.answer = receive(self.control, TORCH_WAIT_SECONDS)

    def said(self):
        """What the server printed for the launcher."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def stop(self):
        """Closes the control socket, at whose end the server ends by itself."""
        self.control.close()
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.errors.close()
        self.close()
        return code


class Streams:
    """The three standard streams of a run: files, pipes or a terminal."""

    def __init__(self, kind, stdin):
        self.kind = kind
        self.parts = [[], []]
        self.readers = []
        self.ours = []
        if kind == "pty":
            self.terminal, self.other = pty.openpty()
            self.theirs = [self.other] * 3
            self.read_later(self.terminal, 0)
        elif kind == "pipe":
            reads, writes = zip(*[os.pipe() for _ in range(3)])
            self.theirs = [reads[0], writes[1], writes[2]]
            self.feed = threading.Thread(target=self.write, args=(writes[0], stdin))
            self.feed.start()
            self.readers.append(self.feed)
            self.read_later(reads[1], 0)
            self.read_later(reads[2], 1)
        else:
            self.files = [tempfile.TemporaryFile() for _ in range(3)]
            self.files[0].write(stdin)
            self.files[0].seek(0)
            self.theirs = [file.fileno() for file in self.files]

    @staticmethod
    def write(number, data):
        with os.fdopen(number, "wb") as file:
            try:
                file.write(data)
            except BrokenPipeError:
                pass

    def read_later(self, number, which):
        def read():
            while True:
                try:
                    part = os.read(number, 1 << 16)
                except OSError:
                    part = b""
                if not part:
                    os.close(number)
                    return
                self.parts[which].append(part)
        reader = threading.Thread(target=read)
        reader.start()
        self.readers.append(reader)

    def started(self):
        """The worker has its own copies."""
        if self.kind != "file":
            for number in set(self.theirs):
                os.close(number)

    def texts(self):
        """Standard output and standard error as text."""
        if self.kind == "file":
            found = []
            for file in self.files[1:]:
                file.seek(0)
                found.append(file.read())
            for file in self.files:
                file.close()
        else:
            for reader in self.readers:
                reader.join(WAIT_SECONDS)
            found = [b"".join(part) for part in self.parts]
        return [text.decode(errors="backslashreplace") for text in found]


class Outcome:
    """What a run looked like from outside."""

    def __init__(self, code, texts, notes=()):
        self.code = code
        self.texts = texts
        self.notes = list(notes)

    def lines(self):
        out, err = [re.sub(r" at 0x[0-9a-f]+", "", text).splitlines() for text in self.texts]
        return [f"exit {self.code}", "stdout:", *out, "stderr:", *err]


def run_executed(python, case, args, environment, cwd):
    """The case as the launcher executes it."""
    streams = Streams(case.streams, case.stdin)
    process = subprocess.Popen([python, *args], env=environment, cwd=cwd, stdin=streams.theirs[0],
                               stdout=streams.theirs[1], stderr=streams.theirs[2], start_new_session=True,
                               umask=case.umask, preexec_fn=lambda: case.prepare())
    streams.started()
    case.during(process.pid)
    try:
        code = process.wait(TORCH_WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = "still running"
    return Outcome(code, streams.texts())


def run_forked(server, case, args, environment):
    """The case as the fork server starts it."""
    streams = Streams(case.streams, case.stdin)
    try:
        worker = server.fork(args, environment, streams.theirs, umask=case.umask, ignored=case.ignored)
    except Refused as why:
        streams.started()
        streams.texts()
        return Outcome("refused", [f"{why}\n", ""])
    streams.started()
    worker.go()
    case.during(worker.pid)
    code = worker.ended_by(TORCH_WAIT_SECONDS)
    return Outcome(code, streams.texts(), server.told())


def difference(one, other):
    """The lines that differ, with a little around them."""
    import difflib
    return list(difflib.unified_diff(one.lines(), other.lines(), "executed", "forked", lineterm="", n=1))


class JobServers:
    """Starts, for each case, a server of its own."""

    warm = False

    def folder(self, case):
        return Path(tempfile.mkdtemp(prefix="probe."))

    def start(self, python, case, folder, cwd):
        return Server(python, case.server_args, case.server_environment(folder), case.preload, cwd)

    def done(self, case, folder):
        shutil.rmtree(folder, ignore_errors=True)

    def close(self):
        """Nothing is kept."""


def compare(python, case, verbose, servers):
    """Runs a case both ways; returns the differences as lines."""
    folder = servers.folder(case)
    expect = case.warm if servers.warm else case.expect
    try:
        cwd = case.lay_out(folder)
        environment = case.environment(folder)
        executed = run_executed(python, case, case.args, environment, cwd)
        server = servers.start(python, case, folder, cwd)
        if "ready" not in (server.answer or {}):
            said = server.said()
            server.stop()
            return [f"the server is not ready: {server.answer}", said] if expect != "refused" else []
        case.lay_out_again(folder)
        forked = run_forked(server, case, case.args, environment)
        said = server.said()
        code = server.stop()
        found = difference(executed, forked)
        if expect == "refused":
            found = [] if forked.code == "refused" else ["the worker was forked, expected a refusal"]
        if expect == "late":
            found = [] if "read nothing" in forked.texts[0].replace("'", "") else ["the change was not ignored"]
        if case.note and expect != "refused" and not any(case.note in note for note in forked.notes):
            found.append(f"the notes do not have {case.note!r}: {forked.notes}")
        found += [f"a note that was not expected: {note}" for note in forked.notes if not case.note]
        found += [f"the server said: {said}"] if said else []
        found += [f"the server ended with {code}"] if code != 0 else []
        if verbose:
            print("\n".join(forked.lines() + forked.notes))
        return found
    finally:
        servers.done(case, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_intermixed_args()
    sys.path.insert(0, str(HERE))
    # The other files import this one by its name: they must get the same classes.
    sys.modules["client"] = sys.modules[__name__]
    import cases
    import checks
    import warm_checks
    import warm_client
    import warm_runs
    subreaper()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        # A shell lets what it starts in the background ignore them.
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    servers = warm_client.WarmServers() if options.warm else JobServers()
    names = {**warm_checks.NAMES, **warm_runs.NAMES} if options.warm else checks.NAMES
    if options.list:
        print("\n".join([case.name for case in cases.all_cases(options.torch)] + list(names)))
        return 0
    wrong = 0
    began = time.monotonic()
    for case in cases.all_cases(options.torch):
        if options.names and case.name not in options.names:
            continue
        found = compare(options.python, case, options.verbose, servers)
        wrong += bool(found)
        print(f"{'differs' if found else 'equal  '}  {case.name}", flush=True)
        for line in found:
            print("    " + line, flush=True)
    servers.close()
    for name, check in names.items():
        if options.names and name not in options.names or options.torch != name.startswith("torch"):
            continue
        found = check(options.python, options)
        wrong += bool(found)
        print(f"{'wrong  ' if found else 'right  '}  {name}", flush=True)
        for line in found:
            print("    " + line, flush=True)
    print(f"{wrong} of the cases and checks differ ({time.monotonic() - began:.1f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
