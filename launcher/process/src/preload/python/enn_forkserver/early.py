"""Variables that were read before the recording began: by .pth files, and by modules loaded at the start.

In the server of one run that is no matter, since its workers have the same. A later run of a warm server may differ in
such a variable, and would get what was made of the other value.
"""

import os
import re
import sys

TEXT_BYTES_MAX = 1 << 20
# How a program writes the name of a variable.
_NAME = re.compile(r"""["']([A-Za-z_][A-Za-z0-9_]*)["']""")


def names(base):
    """The names in quotes in what may have read the environment; `base` are the modules that were there."""
    found = set()
    for path in {*sources(base), *path_files()}:
        text = read(path)
        if "environ" in text or "getenv" in text:
            found.update(_NAME.findall(text))
    return found


def sources(base):
    """The files of modules that are not the standard library's."""
    for name, module in base.items():
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if name.partition(".")[0] not in sys.stdlib_module_names and isinstance(origin, str) and origin.endswith(".py"):
            yield origin


def path_files():
    """The .pth files in the folders of the path, whose lines may be programs."""
    for folder in sys.path:
        try:
            yield from (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pth"))
        except OSError:
            pass


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read(TEXT_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""
