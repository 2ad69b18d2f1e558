"""The modules that a server has imported, and why a certain worker could not be forked from it."""

import gc
import os

from enn_forkserver import guard, health, shadow
from enn_forkserver.files import Files


class Preloaded:
    """The state of the process that every worker begins with, and what is worked out once for all workers."""

    def __init__(self, environment, inherited, mask):
        self.environment = environment
        self.inherited = inherited
        self.mask = mask
        self.stash = None
        self.files = None
        self.looked_up = frozenset()
        self.wanted = []
        self.names = []
        self.missing = []
        self.seconds = 0.0

    def ready(self):
        """The answer to the launcher that asked for this server."""
        return {"ready": {"pid": os.getpid(), "version": health.version(), "modules": self.names,
                          "missing": self.missing, "seconds": self.seconds}}

    def work_out(self, collecting):
        """Does beforehand what each worker would have to do, and fixes the memory that the workers share."""
        self.stash.prepare(self.wanted)
        self.stash.tops()
        self.looked_up = frozenset(self.stash.looked_up())
        self.files = Files(self.stash.hidden)
        gc.freeze()
        if collecting:
            gc.enable()

    def why_not(self, request, folder):
        """Why what was imported here does not suit the worker whose script is in the folder; None when it does."""
        given = self.environment.given
        changed = guard.difference(given, request.environment, self.looked_up, guard.read_at_start)
        if "/" not in request.argv0 and given.get("PATH") != request.environment.get("PATH"):
            changed.append("PATH")
        if changed:
            return f"its environment differs from that of the fork server: {', '.join(changed)}"
        file = self.files.changed()
        if file is not None:
            return f"{file} has changed since the fork server imported it"
        beside = shadow.beside_script(self.stash, folder)
        if beside:
            return f"modules beside the script have the names of preloaded ones: {', '.join(beside)}"
        return None
