"""The launcher's part of the warm server's protocol: starting one, and runs that join it."""

import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import client

PLACEHOLDER = "/.enn-warm-server"
IDLE_SECONDS = 300


class WarmServer:
    """One warm server, that belongs to nobody."""

    def __init__(self, python, environment, preload=client.PRELOAD, **other):
        self.python = python
        self.folder = Path(tempfile.mkdtemp(prefix="warm."))
        self.hook = self.folder / "hook"
        client.write_hook(self.hook, other.get("change"))
        self.hook.chmod(0o700)
        self.path = str(self.hook / "socket")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.path)
        listener.listen(64)
        rest = environment.get("PYTHONPATH")
        full = dict(environment, PYTHONPATH=str(self.hook) + (":" + rest if rest else ""), ENN_FORKSERVER_WHAT="warm",
                    ENN_FORKSERVER_FD=str(listener.fileno()), ENN_FORKSERVER_PRELOAD=preload,
                    ENN_FORKSERVER_IDLE=str(other.get("idle", IDLE_SECONDS)),
                    ENN_FORKSERVER_UNTIL=str(other.get("until", "")))
        self.errors = tempfile.TemporaryFile()
        self.read = 0
        self.process = subprocess.Popen(
            [python, "-u", PLACEHOLDER], env=full, cwd="/", pass_fds=[listener.fileno(), *other.get("pass_fds", ())],
            stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors, start_new_session=True)
        listener.close()

    def connect(self):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(self.path)
        return connection

    def ask(self, body, seconds=client.TORCH_WAIT_SECONDS):
        """One frame there, one back."""
        with self.connect() as connection:
            connection.sendall(client.frame_bytes(body))
            return client.receive(connection, seconds)

    def status(self):
        return self.ask(b"status")

    def ended(self, seconds=10):
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "still running"

    def said(self):
        """What it has printed since the last call."""
        self.errors.seek(self.read)
        text = self.errors.read()
        self.read += len(text)
        return text.decode(errors="replace")

    def stop(self):
        """Ends the server; its exit code."""
        try:
            self.ask(b"stop")
        except OSError:
            pass
        code = self.ended()
        self.errors.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code


class OwnWorker(client.Worker):
    """A worker that stays a child of the run server, which tells how it ended."""

    def ending(self):
        self.connection.sendall(b"e")
        answer = client.receive(self.connection, client.WAIT_SECONDS)
        return answer and answer["exit"]

    def ended_by(self, seconds):
        ready, _, _ = select.select([self.pidfd], [], [], seconds)
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
        ending = self.ending()
        self.connection.close()
        os.close(self.pidfd)
        if not ready or not ending:
            return "still running" if not ready else f"the run server says {ending}"
        return ending["code"] if "code" in ending else -ending["signal"]


class JoinedRun(client.Run):
    """A run that joins a warm server."""

    def __init__(self, warm, args, environment, cwd=None, leave=False, **other):
        super().__init__(warm.python, cwd)
        self.warm = warm
        self.control = warm.connect()
        body = b"join\0" + (b"1" if leave else b"0") + b"\0\0" + self.fields(args, environment, **other)
        self.control.sendall(client.frame_bytes(body))
        self.answer = client.receive(self.control, client.TORCH_WAIT_SECONDS)

    def worker(self, pid, connection):
        return OwnWorker(pid, connection)

    def said(self):
        return self.warm.said()

    def stop(self):
        """Ends the run; the warm server must live."""
        self.close()
        return self.warm.process.poll() or 0


class WarmServers:
    """Starts warm servers for the cases; those that need the same one share it."""

    warm = True

    def __init__(self):
        self.root = Path(tempfile.mkdtemp(prefix="probe."))
        self.key = None
        self.server = None

    def folder(self, case):
        """The same for all cases, so that they have the same PYTHONPATH."""
        if case.writes_library():
            self.clear()
        return self.root

    def start(self, python, case, folder, cwd):
        environment = case.server_environment(folder)
        key = (sorted(environment.items()), case.preload)
        if key != self.key or self.server.process.poll() is not None:
            self.stop()
            self.key = key
            self.server = WarmServer(python, environment, case.preload)
        return JoinedRun(self.server, case.server_args, environment, cwd)

    def done(self, case, folder):
        shutil.rmtree(folder / "work", ignore_errors=True)
        if case.writes_library():
            self.clear()

    def clear(self):
        """Stops the server and removes what it has imported."""
        self.stop()
        shutil.rmtree(self.root / "library", ignore_errors=True)

    def stop(self):
        if self.server is not None:
            self.server.stop()
        self.server = self.key = None

    def close(self):
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)
