"""The cases: each is a program, how it is started, and what it has around it."""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import client

HERE = Path(__file__).resolve().parent
BASE_ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "LOGNAME") if name in os.environ}
RANK = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "job"}


class Case:
    """One program, run executed and forked."""

    def __init__(self, name, args=None, **given):
        self.name = name
        script = given.get("script", name + ".py")
        self.script = script
        self.args = args or ["-u", script, "one", "--two", "", "drei ß"]
        self.server_args = given.get("server_args", self.args)
        self.files = given.get("files", {})
        self.later = given.get("later", {})
        self.variables = given.get("variables", {})
        self.server_variables = given.get("server_variables", {})
        self.preload = given.get("preload", client.PRELOAD)
        self.streams = given.get("streams", "file")
        self.stdin = given.get("stdin", b"")
        self.umask = given.get("umask", 0o027)
        self.ignored = given.get("ignored", ())
        self.signal = given.get("signal")
        self.note = given.get("note")
        self.expect = given.get("expect")

    def prepare(self):
        """In the executed process, before the program."""
        for number in self.ignored:
            signal.signal(number, signal.SIG_IGN)

    def during(self, pid):
        """While the program runs."""
        if self.signal is not None:
            time.sleep(1.0)
            os.kill(pid, self.signal)

    def lay_out(self, folder):
        """Puts the program and what it has beside it into the folder; returns where it is started."""
        for name in ("noisy_import.py",):
            (folder / "library").mkdir(exist_ok=True)
            shutil.copy(HERE / name, folder / "library" / name)
        work = folder / "work"
        work.mkdir()
        shutil.copy(HERE / "seen.py", work / "seen.py")
        if (HERE / self.script).is_file():
            shutil.copy(HERE / self.script, work / self.script)
        write(work, self.files)
        return str(work)

    def lay_out_again(self, folder):
        """What changes between the start of the server and that of the worker."""
        for cache in list(folder.rglob("__pycache__")):
            shutil.rmtree(cache)
        write(folder / "work", self.later)

    def environment(self, folder):
        return {**BASE_ENVIRONMENT, "PYTHONPATH": str(folder / "library"), **self.variables, **RANK}

    def server_environment(self, folder):
        return {**BASE_ENVIRONMENT, "PYTHONPATH": str(folder / "library"), **self.variables, **self.server_variables}


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(text)


def module_case(name, **given):
    """A probe run with -m."""
    return Case(name + " -m", ["-u", "-m", name, "a", "b"], script=name + ".py", **given)


def inline_case(name, text, **given):
    """A program given with -c."""
    return Case(name, ["-u", "-c", text, "a", "b"], **given)


def stream_cases():
    found = []
    for kind in ("file", "pipe", "pty"):
        stdin = b"" if kind == "pty" else b"first\r\nsecond\n\xff\n"
        found.append(Case(f"standard_streams {kind}", script="standard_streams.py", streams=kind, stdin=stdin))
        found.append(Case(f"standard_streams {kind} buffered", ["standard_streams.py"], script="standard_streams.py",
                          streams=kind, stdin=stdin))
    return found


def plain_cases():
    return [
        Case("main_module"),
        module_case("main_module"),
        Case("main_module -c", ["-u", "-c", "import seen; seen.main_module()", "a", "-b"]),
        *stream_cases(),
    ]


def all_cases(torch):
    return plain_cases()
