"""The check whether a run can be served by this warm server, which was started for another one."""

import os
import sys

from enn_forkserver import health, shadow
from enn_forkserver.command import Command

# HOME is where Python looks for the user's own modules; what a job of Slurm gets belongs to that job.
SAME_NAMES = frozenset(("HOME", "SLURM_JOB_ID"))


def why_not(warm, request):
    """Why the run needs another server; None when its workers can be forked here."""
    command = Command(request.args)
    if command.script is None or command.kind == "-":
        return "the script is read from standard input, or there is none"
    own = Command(sys.orig_argv[1:])
    if options(command) != options(own):
        return f"Python's options are {' '.join(options(command)) or 'none'}, expected {' '.join(options(own))}"
    if request.argv0 != sys.orig_argv[0]:
        return f"the interpreter is {request.argv0}, the warm server was started as {sys.orig_argv[0]}"
    why = depends_on_cwd(request) if request.cwd != os.getcwd() else None
    if why is not None:
        return why
    given = warm.preloaded.environment.given
    changed = sorted(name for name in warm.early if given.get(name) != request.environment.get(name))
    if changed:
        return f"its environment differs from that of the warm server: {', '.join(changed)}"
    threads = health.thread_names()
    if len(threads) > 1:
        return f"the warm server has more than one thread: {', '.join(threads[1:])}"
    return warm.preloaded.why_not(request, shadow.script_folder(command.script, command.kind, request.cwd))


def options(command):
    """The options of the interpreter, without what is to be run."""
    return [option for option in command.options if option not in ("-m", "-c")]


def never(preloaded):
    """Why no run at all can be served; None when some can."""
    if relative(preloaded.environment.given.get("PYTHONPATH", "")):
        return "PYTHONPATH has a part that is relative to the working directory, which a warm server has not got"
    return None


def depends_on_cwd(request):
    """Returns what Python has found relative to its working directory, and would find elsewhere in that of the run."""
    if "/" in request.argv0:
        if not os.path.isabs(request.argv0):
            return f"the interpreter {request.argv0} is relative to the working directory"
    elif relative(request.environment.get("PATH", "")):
        return "PATH has a part that is relative to the working directory"
    return None


def relative(path):
    """Whether a list of folders has one that is not absolute; an empty part is the working directory."""
    return path != "" and any(not os.path.isabs(part) for part in path.split(os.pathsep))
