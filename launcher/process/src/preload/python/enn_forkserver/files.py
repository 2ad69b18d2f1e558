"""The files behind the preloaded modules: a package upgraded, or a module edited, under a running server."""

import os
import sys

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Files:
    """The state of the files when they were imported.

    All files of the user's own modules are looked at, and of an installed package the first one, which every installer
    writes anew; the standard library is the interpreter's.
    """

    def __init__(self, modules):
        self.known = {sys.executable: identity(sys.executable)}
        for name, module in modules.items():
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            if not isinstance(origin, str) or not os.path.isabs(origin):
                continue
            if name.partition(".")[0] in sys.stdlib_module_names:
                continue
            if "." not in name or not any(part in origin for part in _INSTALLED):
                self.known[origin] = identity(origin)

    def changed(self):
        """Returns the first file that has changed; None when none has."""
        for path, before in self.known.items():
            if identity(path) != before:
                return path
        return None


def identity(path):
    """The attributes that change when a file is written or replaced."""
    try:
        about = os.stat(path)
        return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
    except OSError:
        return None
