"""Holds Python up before it opens the script, so that workers can be forked from a process that has imported torch.

`enn run --preload` puts this folder first on PYTHONPATH of one extra process, the fork server, that runs the workers'
own command. The module `site` imports this file; the server never returns from it, and a worker forked from it does:
CPython then goes on to run the script as in any other process. Nothing here may leave a trace in such a worker.
"""

import sys

_BASE = dict(sys.modules)
_BASE.pop("sitecustomize", None)


def _serve():
    """Runs the server; returns in a forked worker only, with this folder already taken from the path."""
    import os
    if "ENN_FORKSERVER_WHAT" not in os.environ:
        return
    me = os.getpid()
    try:
        from enn_forkserver import start
        start.start(_BASE)
    except BaseException:
        # Whatever went wrong, this process must not go on to run the script.
        try:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(70 if os.getpid() == me else 71)


_serve()
del _serve, _BASE
# The user's own module of this name, which this file stood before. Where there is none, the error is the one that
# `site` expects and passes over.
sys.modules.pop("sitecustomize", None)
import sitecustomize  # noqa: E402
