"""The entry of the server: what it was asked to be, the imports, the rehearsal, the loop."""

import os
import sys
import time

NAMES = ("ENN_FORKSERVER_FD", "ENN_FORKSERVER_PRELOAD", "ENN_FORKSERVER_WHAT")


def start(base):
    """Called by sitecustomize. Ends the process, or returns in a worker."""
    began = time.monotonic()
    number, words, what = (os.environ.pop(name) for name in NAMES)
    words = [word.strip() for word in words.split(",") if word.strip()]
    importers = leave_path()
    if sys.version_info < (3, 10) or not hasattr(sys, "stdlib_module_names"):
        refuse_old(int(number), what, words)
    from enn_forkserver.ledger import Ledger
    ledger = Ledger(base)
    ledger.open()
    from enn_forkserver import service
    service.run(service.Task(int(number), what, words, began, importers), ledger)


def leave_path():
    """Takes this folder off the path and out of PYTHONPATH; what is left is what the worker was given."""
    hook = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    rest = os.environ.pop("PYTHONPATH", "").partition(os.pathsep)[2]
    if rest:
        os.environ["PYTHONPATH"] = rest
    sys.path[:] = [entry for entry in sys.path if entry != hook]
    return [entry for entry in sys.path_importer_cache if not entry.startswith(hook)]


def refuse_old(number, what, words):
    """For interpreters for which the rest of this package is not written."""
    import json
    why = f"the interpreter is Python {sys.version_info[0]}.{sys.version_info[1]}, expected 3.10 or newer"
    probe = {"executable": sys.executable, "version": sys.version.split()[0], "implementation": sys.implementation.name,
             "found": {word: False for word in words}, "refuse": why}
    text = json.dumps({"probe": probe} if what == "probe" else {"refuse": why}).encode("ascii")
    os.write(number, len(text).to_bytes(4, "little") + text)
    os._exit(0)
