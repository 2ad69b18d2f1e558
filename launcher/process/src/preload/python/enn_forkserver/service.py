"""From the start of the process to its first answer: the probe, or the imports, the rehearsal and the loop."""

import atexit
import gc
import os
import sys
import time

import _signal
import _socket

from enn_forkserver import guard, health, preload, procfs, streams
from enn_forkserver.adopted import Adopted
from enn_forkserver.command import Command
from enn_forkserver.frames import frame, sentence
from enn_forkserver.ledger import watched_lists
from enn_forkserver.preloaded import Preloaded
from enn_forkserver.serve import Server
from enn_forkserver.stash import Stash, filters_changed, restore_filters

# The arguments of the launcher's probe.
QUESTION = ["-u", "-c", "pass"]


class Control:
    """The socket that the launcher of one run gave to its server."""

    def __init__(self, number):
        self.descriptors = {number}
        self.socket = _socket.socket(fileno=number)

    def end(self, answer):
        """Sends the only answer and ends the process."""
        streams.flush_all()
        self.socket.sendall(frame(answer))
        os._exit(0)

    def serve(self, preloaded, collecting):
        """Serves the run; returns in a worker only."""
        self.socket.sendall(frame(preloaded.ready()))
        preloaded.work_out(collecting)
        Server(self.socket, preloaded, Adopted(), os.getcwd()).run()


class AtExit:
    """Gives the hidden modules back when the interpreter ends; registered first, and so called last."""

    def __init__(self):
        self.stash = None
        atexit.register(self)

    def __call__(self):
        if self.stash is not None:
            self.stash.give_all_back()


def run(task, ledger):
    """Ends the process, or returns in a worker."""
    os.set_inheritable(task.number, False)
    if task.what == "warm":
        from enn_forkserver import warm
        client = warm.Listener(task, ledger.base)
    else:
        client = Control(task.number)
    why = health.why_not()
    command = Command(sys.orig_argv[1:])
    if why is None and command.script is None:
        why = "the command names no script"
    if task.what == "probe":
        answer_probe(client, task.words, why)
    if why is not None:
        client.end({"refuse": why})
    text = preload.script_text(command.kind, command.script, command.module, os.getcwd())
    collecting = gc.isenabled()
    gc.disable()
    preloaded = load(client, task, ledger, text)
    client.serve(preloaded, collecting)


def load(client, task, ledger, text):
    """Imports, rehearses and hides; ends the process where no worker can be forked afterwards."""
    lists = {name: list(value) for name, value in watched_lists().items()}
    lists["sys.meta_path"].remove(ledger.misses)
    # Every warning of an import is kept; the worker's filters decide when it is handed out.
    watched_lists()["warnings.filters"][:] = [("always", None, Warning, None, 0)]
    filters_changed()
    own = client.descriptors
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, [])
    environment = guard.Environment(procfs.initial_environment(), dict(os.environ))
    preloaded = Preloaded(environment, set(health.opened()) - own, mask)
    at_exit = AtExit()
    before = health.Before()
    preloaded.wanted = preload.modules(task.words, text)
    preloaded.missing, texts = import_all(preloaded.wanted, ledger)
    restore_filters(lists["warnings.filters"])
    why = before.why_not(own)
    preloaded.inherited |= health.kept_by_nvml()
    at_exit.stash = preloaded.stash = stash = Stash(ledger, texts)
    stash.path = list(sys.path) if sys.path == lists["sys.path"] else lists["sys.path"]
    why = why or rank_is_read(stash)
    if why is not None:
        client.end({"refuse": why})
    put_back(environment.now)
    stash.hide(ledger.base, lists, task.importers)
    preloaded.names = [name for name in preloaded.wanted if name in stash.hidden or name in sys.modules]
    preloaded.seconds = round(time.monotonic() - task.began, 3)
    return preloaded


def answer_probe(client, words, why):
    """Says what could be served here; imports nothing of it."""
    if why is None and sys.orig_argv[1:] != QUESTION:
        why = f"a wrapper around the interpreter gives it arguments: {' '.join(sys.orig_argv[1:])}"
    found = {word: preload.find(word.partition(".")[0]) is not None for word in words}
    # A wrapper (pyenv's, a script of the user's) may have changed the environment and run another program: the launcher
    # gives workers what it has made of them.
    given = b"\0".join(os.fsencode(f"{name}={value}") for name, value in procfs.initial_environment().items())
    client.end({"probe": {"executable": sys.executable, "version": health.version(),
                          "argv0": os.fsencode(sys.orig_argv[0]).hex(), "environment": given.hex(),
                          "implementation": sys.implementation.name, "found": found, "refuse": why}})


def import_all(names, ledger):
    """Imports the list; returns what could not be imported, and what was printed meanwhile."""
    missing = []
    forced = {name: os.environ.get(name) for name in guard.WHILE_PRELOADING}
    capture = streams.Capture()
    try:
        os.environ.update(guard.WHILE_PRELOADING)
        ledger.remember()
        ledger.listen(capture)
        for name in names:
            try:
                __import__(name)
            except Exception as error:
                missing.append({"name": name, "why": sentence(f"{type(error).__name__}: {error}")})
        ledger.close()
        for name, value in forced.items():
            if os.environ.get(name) == guard.WHILE_PRELOADING[name]:
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
    finally:
        texts = capture.stop()
    return missing, texts


def put_back(environment):
    """Takes back what imports wrote into the environment; the hand-out lets it happen again."""
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def rank_is_read(stash):
    """Why workers of different ranks cannot share the imports; None when they can."""
    for name, module in stash.looked_up().items():
        if name in guard.RANK_NAMES:
            return f"{module} looks at {name} while it is imported, and workers differ in it"
    return None
