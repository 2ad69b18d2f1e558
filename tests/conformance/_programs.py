"""Programs of libraries that people train with, unchanged: transformers' Trainer, Lightning's Trainer, accelerate's own test scripts.

Each runs under torchrun and under `enn run`, executed and forked, with two workers over Gloo, and must leave the same: exit code, losses,
weights, and every line that a worker prints. Nothing is loaded from a hub; the models are small and random.

    make programs                          all of them; installs the libraries into target/envs/programs, once
    _programs.py transformers …            some of them, by this Python
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import _enn_torchrun
import _library_programs as programs
from _both_launchers import OURS, THEIRS, finish, main, start
from launcher_preload import starts

PINS = Path(__file__).with_name("requirements-programs.txt")
PLACE = Path(_enn_torchrun.binary()).parent.resolve().parent / "envs" / "programs"
INSTALL_SECONDS_MAX = 600
# `auto` forks the first workers, too, where there are more of them than cores: it gets one, and enn says what that means.
LAUNCHERS = {"torchrun": [], "none": ["--preload", "none"], "torch": ["--preload", "torch"], "auto": ["--preload", "auto"]}
FORKING = ("torch", "auto")
SHARED = """warning: 2 workers share 1 core: they take turns, and each is slower
hint: --nproc-per-node 1 has a core for each thread
"""
FLAGS = ["--standalone", "--nproc-per-node", "2", "--log-dir", "logs", "--redirects", "3"]
# What is measured differs from run to run.
MEASURED = re.compile(r"'\w+_(runtime|per_second)': '[^']*'|.*\d%\|.*")


def install():
    """The libraries in a folder of their own, once for each list of pins; they use the PyTorch of this Python."""
    stamp = PLACE / ".complete"
    if stamp.exists() and stamp.read_bytes() == PINS.read_bytes():
        return
    shutil.rmtree(PLACE, ignore_errors=True)
    pip = [sys._base_executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"]
    subprocess.run([*pip, "--no-deps", "--target", PLACE, "--requirement", PINS], check=True, timeout=INSTALL_SECONDS_MAX)
    shutil.copy(PINS, stamp)


@contextlib.contextmanager
def one_core(wanted):
    """What is started inside has one core, where that is wanted."""
    before = os.sched_getaffinity(0)
    if wanted:
        os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run(base, how, program, flags=(), variables=None):
    """A program, or a module by the words that name it, in one of LAUNCHERS."""
    folder = base / how
    folder.mkdir(parents=True)
    words = program
    if isinstance(program, str):
        (folder / "program.py").write_text(program)
        words = ["program.py"]
    # Each worker has one thread, as torchrun and enn choose by themselves; neither says so where it is given.
    environment = {"PYTHONPATH": str(PLACE), "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1",
                   "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), **(variables or {})}  # fmt: skip
    who, begun = THEIRS if how == "torchrun" else OURS, time.monotonic()
    with one_core(how == "auto"):
        child = start(who, folder, [*LAUNCHERS[how], *FLAGS, *flags, *words], environment)
    done = finish(who, folder, child)
    print(f"       {base.name} {how}: {time.monotonic() - begun:.1f} s", flush=True)
    return done


def printed(done, attempt=0):
    """The lines of each worker's streams in an attempt, without what is measured in them."""
    folder = done.folder.parent
    lines = {}
    for path in sorted(folder.glob(f"logs/*/attempt_{attempt}/*/std*.log")):
        text = path.read_text(errors="replace").replace(str(folder), "FOLDER")
        lines[path.parent.name, path.stem] = [MEASURED.sub("MEASURED", line) for line in text.splitlines()]
    return lines


def forked(done, how, workers=2):
    found, warnings = starts(done)
    assert found == [how in FORKING] * workers, f"{how}: {found}\n{warnings}\n{done}"


def differences(theirs, ours):
    """Each stream whose lines are not the same, with them."""
    return [f"{name}\ntorchrun: {theirs.get(name)}\nenn: {ours.get(name)}" for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)]


def unchanged(base, program, variables=None):
    """Runs the program in all LAUNCHERS; what torchrun's run left."""
    theirs = run(base / "whole", "torchrun", program, variables=variables)
    expected = printed(theirs)
    assert theirs.code == 0 and {rank for rank, _ in expected} == {"0", "1"}, f"{theirs}\n{expected}"
    for how in list(LAUNCHERS)[1:]:
        ours = run(base / "whole", how, program, variables=variables)
        assert (ours.code, ours.out, ours.err) == (0, "", SHARED if how == "auto" else ""), f"{how}: {ours}\n{printed(ours)}"
        forked(ours, how)
        wrong = differences(expected, printed(ours))
        assert not wrong, f"{how}: " + "\n".join(wrong)
        assert ours.said() == theirs.said(), f"{how}: {theirs.said()}\n{ours.said()}"
    return theirs


def trained(base, program):
    """Trains in all LAUNCHERS, and once more with a failure in the middle."""
    whole = unchanged(base, program).said()
    assert [whole[rank]["processes"] for rank in (0, 1)] == [2, 2] and whole[0]["weights"] == whole[1]["weights"], whole
    fails(base, program)
    goes_on(base, program, whole)


def fails(base, program):
    """A worker raises an exception: the same exit code, and the same lines of that worker; `enn run` names the cause."""
    theirs, ours = (run(base / "failing", how, program, variables={"FAILS": "1"}) for how in ("torchrun", "torch"))
    assert theirs.code == ours.code == 1, f"{theirs}\n{ours}"
    forked(ours, "torch")
    left, right = ({name: lines for name, lines in printed(each).items() if name[0] == "1"} for each in (theirs, ours))
    wrong = differences(left, right)
    assert right and not wrong and right["1", "stderr"][-1].endswith("RuntimeError: the cause"), f"{right}\n" + "\n".join(wrong)
    assert "RuntimeError: the cause" in ours.err and "rank 1" in ours.err, ours


def goes_on(base, program, whole):
    """After the same failure the workers are forked once more, and end with what an undisturbed run ends with."""
    ours = run(base / "restarted", "auto", program, ["--max-restarts", "1"], {"FAILS": "1"})
    assert ours.code == 0, ours
    forked(ours, "auto", workers=4)
    said = ours.said()
    assert all(said[rank].pop("began") and not whole[rank].pop("began") for rank in (0, 1)), f"{whole}\n{said}"
    assert said == whole, f"{whole}\n{said}"


def case_transformers(base):
    trained(base, programs.TRANSFORMERS)


def case_lightning(base):
    trained(base, programs.LIGHTNING)


def scripted(base, name):
    """One of accelerate's own test scripts; what rank 0 printed."""
    theirs = unchanged(base, ["-m", f"accelerate.test_utils.scripts.{name}"], {"ACCELERATE_USE_CPU": "true"})
    return printed(theirs)["0", "stdout"]


def case_accelerate_script(base):
    said = scripted(base, "test_script")
    assert "**Training integration test**" in said and any("MULTI_CPU" in line for line in said), said


def case_accelerate_sync(base):
    assert any("no_sync" in line for line in scripted(base, "test_sync"))


if __name__ == "__main__":
    install()
    main(globals())
