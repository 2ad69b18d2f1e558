"""The cases: each is a program, how it is started, and what it has around it."""

import os
import shutil
import signal
import time
import zipfile
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
        self.links = given.get("links", {})
        self.archive = given.get("archive", {})
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
        # What is expected of a warm server, which was started with -u alone and in another folder.
        self.warm = given.get("warm", self.expect)

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
            if not (folder / "library" / name).exists():
                shutil.copy(HERE / name, folder / "library" / name)
        work = folder / "work"
        work.mkdir()
        shutil.copy(HERE / "seen.py", work / "seen.py")
        if (HERE / self.script).is_file():
            shutil.copy(HERE / self.script, work / self.script)
        write(work, self.files)
        for name, target in self.links.items():
            (work / name).symlink_to(target)
        if self.archive:
            with zipfile.ZipFile(work / "archive.zip", "w") as archive:
                for name, text in self.archive.items():
                    archive.writestr(name.partition("/")[2], text)
        return str(work)

    def writes_library(self):
        """Whether the case has modules of its own where the server looks for them."""
        return any(name.startswith("../library/") for name in self.files)

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
                          streams=kind, stdin=stdin, warm="refused"))
    return found


def start_cases():
    """How a program can be named on the command line."""
    package = {"package/__init__.py": "print('package', __name__)\n",
               "package/__main__.py": "import seen\nfrom . import part\nseen.main_module()\n"
                                       "print(part.NAME, __spec__.name)\n",
               "package/part.py": "NAME = __name__\n"}
    folder = {"folder/__main__.py": "import seen, beside_main\nseen.main_module()\n", "folder/beside_main.py": "",
              "folder/seen.py": (HERE / "seen.py").read_text()}
    return [
        Case("main_module"),
        Case("main_module, its path", ["-u", "../work/./main_module.py"], script="main_module.py"),
        Case("main_module, a link", ["-u", "link/main.py"], files={"link/nothing": ""}, script="main_module.py",
             links={"link/main.py": "../main_module.py"}),
        module_case("main_module"),
        Case("a package", ["-u", "-m", "package", "x"], files=package),
        Case("a part of a package", ["-u", "-m", "package.part", "x"], files=package),
        Case("no such module", ["-u", "-m", "package.nothing"], files=package),
        Case("a folder", ["-u", "folder", "x"], files=folder),
        Case("an archive", ["-u", "archive.zip", "x"], archive=folder),
        inline_case("a warning before any import", "eval(compile('1 is 1', 'x', 'eval'))"),
        inline_case("a text", "import seen; seen.main_module()"),
        Case("standard input", ["-u", "-", "x"], stdin=b"import seen\nseen.main_module()\n", warm="refused"),
        Case("standard input, a pipe", ["-u", "-", "x"], stdin=b"import seen\nseen.main_module()\n", streams="pipe",
             warm="refused"),
        Case("options", ["-u", "-O", "-W", "error::UserWarning", "-Xfaulthandler", "-B", "main_module.py", "-u", "-x"],
             script="main_module.py", warm="refused"),
        Case("development mode", ["-u", "-X", "dev", "main_module.py"], script="main_module.py", warm="refused"),
        Case("other arguments", ["-u", "main_module.py", "rank", "1 2"], script="main_module.py",
             server_args=["-u", "main_module.py"]),
        Case("fewer arguments", ["-u", "-m", "main_module"], script="main_module.py",
             server_args=["-u", "-m", "main_module", "a", "-b", "--c"]),
        Case("other arguments of a text", ["-u", "-c", "import seen; seen.main_module()", "1"],
             server_args=["-u", "-c", "import seen; seen.main_module()"]),
        Case("an empty PYTHONPATH", ["-u", "main_module.py"], script="main_module.py", variables={"PYTHONPATH": ""}),
        Case("no user site", ["-us", "-Xutf8", "main_module.py", "x"], script="main_module.py", warm="refused"),
        Case("a safe path", ["-u", "main_module.py", "x"], script="main_module.py", variables={
            "PYTHONSAFEPATH": "1", "PYTHONPATH": "."}, warm="refused"),
        Case("a safe path, absolute", ["-u", "main_module.py", "x"], script="main_module.py",
             variables={"PYTHONSAFEPATH": "1"}, files={"../library/seen.py": (HERE / "seen.py").read_text()}),
        Case("development mode by a variable", ["-u", "main_module.py"], script="main_module.py",
             variables={"PYTHONDEVMODE": "1"}),
        Case("joined options", ["-um", "main_module", "x"], script="main_module.py"),
        Case("no script", ["-u", "nothing.py"], script="main_module.py"),
        Case("a syntax error", ["-u", "wrong.py"], files={"wrong.py": "x = 1\nif x\n    pass\n"}),
        Case("a tab error", ["-u", "wrong.py"], files={"wrong.py": "if 1:\n\tx = 1\n        y = 2\n"}),
        Case("an encoding", ["-u", "latin.py"], files={"latin.py": b"# coding: latin-1\nprint(ascii('\xe4'))\n"}),
        Case("a wrong encoding", ["-u", "latin.py"], files={"latin.py": b"print('\xe4')\n"}),
        Case("future", ["-u", "f.py"], files={"f.py": "from __future__ import annotations\nx: int = 3\n"
                                              "print(__annotations__)\n"}),
        Case("pdb", ["-u", "-m", "pdb", "main_module.py", "x"], script="main_module.py",
             stdin=b"n\nn\nwhere\nc\nq\n"),
        Case("breakpoint", ["-u", "b.py"], files={"b.py": "def f():\n    breakpoint()\n    return 1\nprint(f())\n"},
             stdin=b"w\nc\n"),
        Case("a module of the standard library", ["-u", "-m", "json.tool", "--indent", "1"], stdin=b'{"a": [1]}'),
        Case("traceback of a text", ["-u", "-c", "def f():\n    1/0\nf()"]),
        Case("compiled", ["-u", "-c", "import other; print(other.__cached__ is not None, other.X)"],
             files={"other.py": "X=1\n"}),
    ]


def ending_cases():
    """All ways to end."""
    found = [Case("end: " + how, ["-u", "endings.py", how], script="endings.py") for how in (
        "code", "message", "none", "exception", "chained", "group", "hard", "segv", "abort", "interrupt", "thread",
        "unraisable", "recursion", "closed", "import error", "preloaded")]
    for name in ("TERM", "INT", "KILL", "HUP"):
        found.append(Case(f"end: {name} from outside", ["-u", "endings.py", "wait"], script="endings.py",
                          signal=signal.Signals[f"SIG{name}"]))
    found.append(Case("end: a handler", ["-u", "endings.py", "handler"], script="endings.py", signal=signal.SIGTERM))
    found.append(Case("end: INT ignored", ["-u", "endings.py", "interrupt"], script="endings.py",
                      ignored=[signal.SIGINT]))
    found.append(Case("end: faulthandler", ["-u", "-X", "faulthandler", "endings.py", "fatal"], script="endings.py",
                      warm="refused"))
    return found


def environment_cases():
    """The environment, and a script that changes it before an import."""
    name = "environment_then_import"
    late = "the script changes NOISY_IMPORT_READS before it imports noisy_import"
    found = [
        Case("environment"),
        Case("environment, C locale", script="environment.py", variables={"LC_ALL": "C"}),
        Case("environment, UTF-8", script="environment.py", variables={"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}),
        Case("environment, odd", script="environment.py", variables={
            "PYTHONIOENCODING": "latin-1:replace", "EMPTY": "", "BYTES": "a\udcff", "LINES": "a\nb", "EQUALS": "=a=b"}),
        Case("environment, late names", script="environment.py", variables={"TZ": "Asia/Tokyo", "NCCL_DEBUG": "WARN",
             "TMPDIR": "/var/tmp", "CUDA_VISIBLE_DEVICES": "1"}, server_variables={
                 "TZ": "UTC", "CUDA_VISIBLE_DEVICES": "0", "TMPDIR": "/tmp", "NCCL_DEBUG": "INFO"}),
        Case("noisy"),
        Case("a file left open", ["-u", "-c", "open('/dev/null')"]),
        Case("noisy, a pipe", script="noisy.py", streams="pipe"),
        Case("noisy, buffered", ["noisy.py"], script="noisy.py", variables={"BUFFERED": "1"}, warm="refused"),
        *[Case("noisy, " + how, ["-u", "noisy.py", how], script="noisy.py")
          for how in ("always", "ignore", "redirect", "record")],
        Case(name, ["-u", name + ".py"], note=late),
        Case(name + ", a pipe", ["-u", name + ".py"], script=name + ".py", streams="pipe", note=late),
        Case(name + ", a terminal", ["-u", name + ".py"], script=name + ".py", streams="pty", note=late),
        Case(name + ", INT ignored", ["-u", name + ".py"], script=name + ".py", note=late, ignored=[signal.SIGINT]),
        Case(name + ", printed, buffered", [name + ".py", "print"], script=name + ".py", note=late, streams="pipe",
             warm="refused"),
    ]
    for how, why in (("print", "written something"), ("open", "opened a file"), ("child", "started a process"),
                     ("written", "written something"), ("stdin", "read its standard input")):
        found.append(Case(f"{name}, {how}", ["-u", name + ".py", how], script=name + ".py", note=why, expect="late",
                          stdin=b"a line\n"))
    return found


def other_cases():
    """Processes, threads, names, modules that lie in the way."""
    customize = {"../library/sitecustomize.py": "import sys, json\n"
                 "SAW = sorted(m for m in sys.modules if 'json' in m)\n",
                 "../library/usercustomize.py": "import sys\nSAW = 'sitecustomize' in sys.modules\n"}
    broken = {"../library/sitecustomize.py": "raise ValueError('in sitecustomize')\n"}
    missing = {"../library/sitecustomize.py": "import no_such_thing\n"}
    own = {"json.py": "OWN = True\nJSONDecodeError = ValueError\n"}
    more = {"more/json.py": "OWN = True\nJSONDecodeError = ValueError\n"}
    return [
        Case("imports"),
        Case("process_state"),
        Case("process_state, a pipe", script="process_state.py", streams="pipe"),
        Case("process_state, a terminal", script="process_state.py", streams="pty"),
        Case("process_state, ignored", script="process_state.py",
             ignored=[signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]),
        Case("processes"),
        Case("processes, a terminal", script="processes.py", streams="pty"),
        Case("threads_and_exit"),
        Case("a finalizer", ["-u", "-c", "import weakref\nclass A: pass\na = A()\n"
                            "weakref.finalize(a, print, 'finalized')\nimport builtins; builtins.kept = a"]),
        Case("customize", files=customize),
        Case("customize, broken", script="customize.py", files=broken),
        Case("customize, missing", script="customize.py", files=missing),
        Case("hash seed", ["-u", "-c", "print(hash('a'), list({'a', 'b', 'c'}))"], variables={"PYTHONHASHSEED": "7"}),
        Case("beside", files=own, expect="refused"),
        Case("beside, later", script="beside.py", later=own, expect="refused"),
        Case("beside, a folder", script="beside.py", files={"json/readme": "", "logging/data.txt": ""}),
        Case("beside, a package", script="beside.py", files={"json/__init__.py": "OWN = 1\n"}, expect="refused"),
        Case("beside, on an added path", ["-u", "beside.py", "path"], script="beside.py", files=more,
             note="the script's path has another module json"),
    ]


def plain_cases():
    return [*start_cases(), *stream_cases(), *environment_cases(), *other_cases(), *ending_cases()]


def torch_cases():
    """The set that needs torch; its servers take the import's time."""
    one = {"OMP_NUM_THREADS": "1"}

    def case(name, **given):
        given.setdefault("variables", one)
        return Case(name, ["-u", name + ".py"], preload="torch", **given)
    return [case("torch_basics"), case("torch_environment", note="the script changes OMP_NUM_THREADS, TORCH_LOGS"),
            case("torch_loader"), case("torch_compile", variables={**one, "TORCHINDUCTOR_FX_GRAPH_CACHE": "0"})]


def all_cases(torch):
    return torch_cases() if torch else plain_cases()
