"""The entry of the server: its task, the imports, the rehearsal, the loop."""

import os
import sys
import time

PREFIX = "ENN_FORKSERVER_"


class Task:
    """The launcher's task for this process: the variables of PREFIX, taken from the environment."""

    def __init__(self):
        self.began = time.monotonic()
        self.number = int(take("FD"))
        self.what = take("WHAT")
        self.words = [word.strip() for word in take("PRELOAD").split(",") if word.strip()]
        # Of the warm server only: after how many seconds without a run it ends, and at which process's end.
        self.idle = float(take("IDLE")) if self.what == "warm" else 0.0
        self.until = take("UNTIL") if self.what == "warm" else ""
        self.hook = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.importers = self.leave_path()

    def leave_path(self):
        """Takes this folder off the path and out of PYTHONPATH; what is left is what the worker was given."""
        rest = os.environ.pop("PYTHONPATH", "").partition(os.pathsep)[2]
        if rest:
            os.environ["PYTHONPATH"] = rest
        sys.path[:] = [entry for entry in sys.path if entry != self.hook]
        return [entry for entry in sys.path_importer_cache if not entry.startswith(self.hook)]


def take(name):
    return os.environ.pop(PREFIX + name)


def start(base):
    """Called by sitecustomize. Ends the process, or returns in a worker."""
    task = Task()
    if task.what == "warm":
        close_all_but(task.number)
    if sys.version_info < (3, 10) or not hasattr(sys, "stdlib_module_names"):
        refuse_old(task)
    from enn_forkserver.ledger import Ledger
    ledger = Ledger(base)
    ledger.open()
    from enn_forkserver import service
    service.run(task, ledger)


def close_all_but(number):
    """Closes what this process has inherited by chance; the workers of a later run have not got it either."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != number:
            try:
                os.close(int(name))
            except OSError:
                pass


def refuse_old(task):
    """For interpreters for which the rest of this package is not written."""
    import json
    why = f"the interpreter is Python {sys.version_info[0]}.{sys.version_info[1]}, expected 3.10 or newer"
    probe = {"executable": sys.executable, "version": sys.version.split()[0], "implementation": sys.implementation.name,
             "found": {word: False for word in task.words}, "refuse": why}
    text = json.dumps({"probe": probe} if task.what == "probe" else {"refuse": why}).encode("ascii")
    if task.what == "warm":
        import shutil
        shutil.rmtree(task.hook, ignore_errors=True)
    else:
        os.write(task.number, len(text).to_bytes(4, "little") + text)
    os._exit(0)
