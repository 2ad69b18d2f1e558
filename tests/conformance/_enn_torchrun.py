"""Runs `enn-torchrun` where a test of PyTorch's runs torchrun, and the test files of PyTorch's with a list of what cannot apply."""

import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from _cases import cases, name

PR_SET_PDEATHSIG = 1
LAUNCH_SECONDS_MAX = 300


def binary():
    """`enn-torchrun`, a link to `enn` beside it."""
    folder = Path(os.environ.get("ENN_BIN_DIR") or Path(__file__).resolve().parents[2] / "target" / "release")
    link = folder / "enn-torchrun"
    if not link.exists():
        sys.exit(f"error: {link}: not found\nhint: run `make build` first")
    return str(link)


def environment(runs):
    """This Python's environment, with this Python first on PATH, as torchrun runs scripts with its own; runs are kept in `runs`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ENN_")}
    # Not Path.resolve: the link in the virtual environment is what makes it one.
    return dict(inherited, PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", ENN_RUNS=str(runs))


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def launch(args, runs, extra=None):
    """Exit status and both streams of `enn-torchrun ARGS`."""
    done = subprocess.run([binary(), *args], env=dict(environment(runs), **(extra or {})), preexec_fn=die_with_parent,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", timeout=LAUNCH_SECONDS_MAX)
    return done.returncode, done.stdout, done.stderr


def main(args):
    """In place of torchrun's main(): the streams go where Python's go, and what went wrong is an exception of the same kind."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with tempfile.TemporaryDirectory() as runs:
        code, out, err = launch(args, runs)
    sys.stdout.write(out)
    sys.stderr.write(err)
    if code == 0:
        return
    if code == 2:
        raise SystemExit(2)
    # What is wrong with the command line is told before anything is started, in one sentence.
    told = [line for line in err.splitlines() if line.startswith("error: ")]
    if told:
        raise ValueError(told[0])
    raise ChildFailedError("enn-torchrun", {})


def load(path, name):
    """A test file as a module that workers can import by this name."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Result(unittest.TestResult):
    """Keeps what a test prints with its failure, and shows nothing by itself."""

    def __init__(self):
        super().__init__()
        self.buffer = True

    def _restoreStdout(self):
        self._mirrorOutput = False
        super()._restoreStdout()


# Scripts of PyTorch's tests that leave without destroying their process group abort now and then ("terminate called without an
# active exception") after they have printed "Done": about one in 20 processes here. The launcher reports it rightly, and the test
# fails; so a test that failed is run again, and what failed is shown.
AGAIN_MAX = 3


def run(case):
    """Runs one test."""
    result = Result()
    unittest.TestSuite([case]).run(result)
    return result


def check(modules, inapplicable):
    """Runs all tests of `modules`; those in `inapplicable` (name -> reason) must fail or raise, all others must pass.

    Exits 1 when a test fails that is not listed, when a listed one passes, or when one is listed that does not exist.
    """
    loader = unittest.TestLoader()
    chosen = set(sys.argv[1:])
    found, wrong, applied = set(), [], 0
    for module in modules:
        for case in cases(loader.loadTestsFromModule(module)):
            found.add(name(case))
            if chosen and name(case) not in chosen:
                continue
            result = run(case)
            for _ in range(AGAIN_MAX):
                if name(case) in inapplicable or result.wasSuccessful():
                    break
                told = "\n".join(text for _, text in result.failures + result.errors)
                print(f"  again {name(case)}, which failed:\n{told}", flush=True)
                result = run(case)
            passed = result.wasSuccessful()
            if name(case) in inapplicable:
                print(f"  n/a  {name(case)}: {inapplicable[name(case)]}", flush=True)
                if passed and not result.skipped:
                    wrong.append(f"{name(case)} is listed as inapplicable but passes")
                continue
            applied += 1
            print(f"  {'ok  ' if passed else 'FAIL'} {name(case)}", flush=True)
            if not passed:
                texts = [text for _, text in result.failures + result.errors]
                wrong.append("\n".join([name(case), *texts]))
            elif result.skipped:
                wrong.append(f"{name(case)} was skipped: {result.skipped[0][1]}")
    wrong += [f"{listed} is listed as inapplicable but does not exist" for listed in inapplicable if listed not in found]
    print(f"{applied} tests of PyTorch's apply, {len(inapplicable)} do not; {len(wrong)} wrong")
    for text in wrong:
        print(text)
    sys.exit(1 if wrong or not applied else 0)
