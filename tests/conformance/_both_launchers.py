"""Runs a program under torchrun and under enn with the same flags, and compares what it left."""

import fcntl
import importlib.util
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
import traceback
from pathlib import Path

import _enn_torchrun
import _torchrun_flags

RUN_SECONDS_MAX = 120
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ENN = [str(Path(_enn_torchrun.binary()).with_name("enn")), "run"]
OURS, THEIRS = "enn", "torchrun"


class Run:
    """A finished launch: exit status, streams, and what the program said by rank."""

    def __init__(self, who, folder, code, out, err):
        self.who, self.folder, self.code, self.out, self.err = who, folder, code, out, err

    def said(self, name="result"):
        files = sorted(path for path in self.folder.glob(f"{name}.*") if path.suffix[1:].isdigit())
        return {int(path.suffix[1:]): json.loads(path.read_text()) for path in files}

    def __repr__(self):
        return f"{self.who}: code {self.code}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-6000:]}"


def prepared(who, folder, args, variables=None):
    """Command line and environment of a launcher; the program's words go to folder/OUT."""
    (folder / "out").mkdir(parents=True)
    environment = dict(_enn_torchrun.environment(folder / "runs"), OUT=str(folder / "out"), **(variables or {}))
    return (ENN if who == OURS else TORCHRUN) + args, environment


def start(who, folder, args, variables=None, stdin=None):
    """Starts a launcher in `folder`."""
    command, environment = prepared(who, folder, args, variables)
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, errors="replace", preexec_fn=_enn_torchrun.die_with_parent)


def on_terminal(who, folder, args, prompt, typed):
    """A launcher on a terminal that it controls; `typed` is typed when `prompt` is shown. Exit status and what was shown."""
    command, environment = prepared(who, folder, args)
    child, master = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, environment)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    shown, deadline = b"", time.monotonic() + RUN_SECONDS_MAX
    while time.monotonic() < deadline:
        if not select.select([master], [], [], 1)[0]:
            continue
        try:
            read = os.read(master, 4096)
        except OSError:
            break
        if not read:
            break
        shown += read
        if typed and prompt in shown:
            os.write(master, typed)
            typed = b""
    else:
        os.kill(child, 9)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(master)
    return Run(who, folder / "out", code, shown.decode(errors="replace"), "")


def finish(who, folder, child):
    out, err = child.communicate(timeout=RUN_SECONDS_MAX)
    return Run(who, folder / "out", child.returncode, out, err)


def both(base, program, args, script_args=(), variables=None, name="program.py"):
    """The program under both launchers."""
    runs = []
    for who in (THEIRS, OURS):
        folder = base / who
        folder.mkdir()
        (folder / name).write_text(program)
        runs.append(finish(who, folder, start(who, folder, [*args, *script_args], variables)))
    return runs


def same(theirs, ours, what):
    left, right = what(theirs), what(ours)
    assert left == right, f"torchrun: {left}\nenn: {right}\n{theirs}\n{ours}"
    return left


def torchrun_flags():
    """The flags of this Python's torchrun."""
    torch = importlib.util.find_spec("torch")
    return _torchrun_flags.of_python(Path(torch.origin).parents[1])


def main(cases, needs=None):
    """Runs the functions case_NAME; names given on the command line select some. `needs`: a flag by the name of the case it is needed in,
    which a release without the flag leaves out."""
    cases = {name[5:]: case for name, case in cases.items() if name.startswith("case_")}
    theirs = torchrun_flags()
    chosen = []
    for name in sys.argv[1:] or list(cases):
        flag = (needs or {}).get(name)
        if flag and flag not in theirs:
            print(f"  n/a  {name}: this torchrun has no {flag}", flush=True)
        else:
            chosen.append(name)
    failed = []
    for name in chosen:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                cases[name](Path(folder))
                verdict = "ok  "
            except Exception:
                failed.append(name)
                verdict = "FAIL"
                traceback.print_exc(file=sys.stdout)
        print(f"  {verdict} {name} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"{len(chosen)} cases, {len(failed)} failed")
    sys.exit(1 if failed or not chosen else 0)
