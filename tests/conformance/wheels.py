"""Wheels of what was built, installed as a user would: nothing but pip, the wheels and a torch; no cargo, no make.

First in an empty virtual environment, then in a Debian without cargo (target/root, made by packaging/root.sh), if that is there. The torch
of this Python is linked into them.
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("ENN_BIN_DIR", ROOT / "target/release")).resolve()
TOOLS = ROOT / "target/venv-wheels/bin/python"
SYSTEM = ROOT / "target/root"
PACKAGES = Path(sysconfig.get_path("purelib"))
COMMAND_SECONDS_MAX = 300
IMPORT_MS_MAX = 50

SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {int(total)} on {sys.executable}")
dist.destroy_process_group()
"""

IMPORT = """
import sys, time
began = time.perf_counter()
import enn
took = (time.perf_counter() - began) * 1000
print(took)
sys.exit(any(name in sys.modules for name in ("torch", "numpy")))
"""

METRIC = """
import enn, pathlib
# The run that failed without torch may be of the same second.
run = enn.load(max(pathlib.Path("runs").glob("*/checkpoints/step-*")).parents[1])
print(run.metrics["test"]["mae"])
"""


def clean():
    """What a user has who has never seen ENN: no variable that leads to what was built here."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "TERM")
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    return variables | {"OMP_NUM_THREADS": "1"}


def run(command, cwd, code=0, **variables):
    """Runs a command; returns what it prints on both streams."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=clean() | variables, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_SECONDS_MAX)
    assert done.returncode == code, f"{command} ended with {done.returncode}, expected {code}:\n{done.stdout}"
    return done.stdout


def contains(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in:\n{text}"


def packed(folder):
    """The folder of wheels, made from the programs of this build."""
    out = folder / "wheels"
    command = [TOOLS, ROOT / "packaging/wheels.py", "--strip", "--enn", BIN / "enn"]
    # The same program stands for that of another release: by its name it is chosen, and to make the other one takes too long.
    workers = [f"--worker={release}-cpu={BIN / 'enn-worker'}" for release in ("2.11", "2.13")]
    print(run([*command, *workers, "--out", out], ROOT), end="")
    return out


def installed(wheels, python, *options):
    return run([TOOLS, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--find-links", wheels, *options, "enn-train"], "/")


def environment(folder):
    """An empty virtual environment; its folder has a space in its name."""
    env = folder / "an environment"
    run([sys.executable, "-m", "venv", "--without-pip", env], "/")
    return env


def link_torch(env):
    """Links the torch of this Python into an environment, and what torch needs behind the packages that are there."""
    packages = next((env / "lib").glob("python3*/site-packages"))
    (packages / "torch").symlink_to(PACKAGES / "torch")
    (packages / "torch.pth").write_text(f"{PACKAGES}\n")


def project(folder):
    """The folder of a user: the weather example and a script."""
    work = folder / "my project"
    work.mkdir()
    for name in ("weather.toml", "weather.csv"):
        shutil.copy(ROOT / "examples/weather" / name, work)
    (work / "script.py").write_text(SCRIPT)
    return work


def fastest_ms(command, tries=7):
    def once():
        began = time.perf_counter()
        run(command, "/")
        return (time.perf_counter() - began) * 1000
    return min(once() for _ in range(tries))


def check_environment(wheels, folder):
    env = environment(folder)
    work = project(folder)
    enn = env / "bin/enn"
    python = env / "bin/python"
    installed(wheels, python)
    # Without torch: what is missing, and how it is installed into this environment.
    told = run([enn, "train", "weather.toml"], work, code=4, VIRTUAL_ENV=str(env))
    contains(told, "no libtorch 2.11 or 2.13 was found", f"the Python {env}/bin/python3 has no torch", "-m pip install torch==2.11.0`")
    assert "make " not in told, told
    link_torch(env)
    # The environment is not active: its programs use its Python all the same.
    trained(enn, work, epochs=1)
    contains(run([enn, "doctor", "--all"], work), "enn_train/bin/enn-worker-2.11-cpu", "CPU build")
    assert float(run([python, "-c", METRIC], work)) > 0
    for program in ([enn, "run"], [env / "bin/enn-torchrun"]):
        told = run([*program, "--nproc-per-node", "2", "script.py"], work)
        contains(told, f"rank 0 of 2 on {env}", f"rank 1 of 2 on {env}")
    contains(run([env / "bin/enn-torchrun", "--version"], work), "enn-torchrun ")
    took = fastest_ms([python, "-c", "pass"])
    print(f"enn --version: {fastest_ms([enn, '--version']):.1f} ms, with the start of a process by this test; python -c pass: {took:.1f} ms")
    took = min(float(run([python, "-I", "-c", IMPORT], work)) for _ in range(5))
    assert took < IMPORT_MS_MAX, f"import enn takes {took} ms"
    check_choice(env, work)


def trained(enn, work, epochs, **variables):
    began = time.monotonic()
    told = run([enn, "train", "weather.toml", "--set", f"train.epochs={epochs}"], work, **variables)
    contains(told, "report.html")
    print(f"{epochs} epochs: {time.monotonic() - began:.1f} s")


def check_choice(env, work):
    """The worker is the one for a torch; a torch that no worker is built for; an environment without workers."""
    enn = env / "bin/enn"
    other = work / "other/torch"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "lib").symlink_to(PACKAGES / "torch/lib")
    of_other = {"PYTHONPATH": str(other.parent), "VIRTUAL_ENV": str(env)}
    (other / "version.py").write_text("__version__ = '2.13.0'\n")
    contains(run([enn, "doctor", "--all"], work, **of_other), "enn_train/bin/enn-worker-2.13-cpu")
    (other / "version.py").write_text("__version__ = '2.12.1'\n")
    told = run([enn, "train", "weather.toml"], work, code=4, **of_other)
    contains(told, "is torch 2.12.1, expected a libtorch 2.11 or 2.13", "-m pip install torch==2.11.0`")
    workers = next((env / "lib").glob("python3*/site-packages/enn_train"))
    workers.rename(workers.with_name("away"))
    told = run([enn, "train", "weather.toml"], work, code=4, VIRTUAL_ENV=str(env))
    contains(told, "no enn-worker was found: ENN_WORKER is not set", f"no package enn_train is installed in {env}",
             f"`{env}/bin/python3 -m pip install enn-train==")
    workers.with_name("away").rename(workers)


def check_other_places(wheels, folder):
    """`pip install --target` and `pip install --user`."""
    target = folder / "target"
    installed(wheels, sys.executable, "--target", target)
    contains(run([target / "bin/enn", "doctor", "--all"], folder, PYTHON_EXEC=sys.executable), f"{target}/enn_train/bin/enn-worker-2.11-cpu")
    # The Python of an environment refuses --user.
    base = Path(sys.base_prefix) / "bin/python3"
    user = folder / "user"
    variables = {"PYTHONUSERBASE": str(user), "PIP_BREAK_SYSTEM_PACKAGES": "1"}
    command = [TOOLS, "-m", "pip", "--python", base, "install", "--quiet", "--no-index", "--find-links", wheels, "--user", "enn-train"]
    run(command, folder, **variables)
    told = run([user / "bin/enn", "doctor", "--all"], folder, PYTHON_EXEC=sys.executable)
    contains(told, f"{user}/lib/", "enn_train/bin/enn-worker-2.11-cpu")


def check_system(wheels, folder):
    """A Debian without cargo, its root and its processes apart from ours."""
    if not (SYSTEM / ".complete").is_file():
        return f"{SYSTEM} is not there: packaging/root.sh makes it as root"
    may = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode == 0
    python = subprocess.run(["chroot", SYSTEM, "python3", "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True)
    if not may or python.returncode != 0:
        return "this machine lets no process have a root of its own"
    if python.stdout.strip() != str(sys.version_info[:2]):
        return f"its Python is {python.stdout.strip()}, and the torch at hand is for {sys.version_info[:2]}"
    work = project(folder)
    inside = folder / "inside.sh"
    inside.write_text(INSIDE)
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", inside, SYSTEM, wheels, work, PACKAGES]
    print(run(command, "/"), end="")
    return None


INSIDE = r"""
set -euo pipefail
root=$1 wheels=$2 work=$3 packages=$4
mount --make-rprivate /
mount -t tmpfs tmpfs "$root/tmp"
mkdir "$root/tmp/wheels" "$root/tmp/work" "$root/tmp/packages"
mount --bind "$wheels" "$root/tmp/wheels"
mount --bind "$work" "$root/tmp/work"
mount --bind -o ro "$packages" "$root/tmp/packages"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot "$root" env -i PATH=/usr/bin:/bin HOME=/tmp OMP_NUM_THREADS=1 bash -euo pipefail -c '
	! command -v cargo rustc make cc
	cd /tmp/work
	python3 -m venv /tmp/env
	. /tmp/env/bin/activate
	pip install --quiet --disable-pip-version-check --no-index --find-links /tmp/wheels enn-train
	cd /tmp/env/lib/python3.*/site-packages
	ln -s /tmp/packages/torch torch
	echo /tmp/packages > torch.pth
	cd /tmp/work
	echo "installed after $SECONDS s"
	enn run --nproc-per-node 2 script.py
	echo "a script ran after $SECONDS s"
	enn train weather.toml --set train.epochs=1
	echo "a model is trained after $SECONDS s"
	python -c "import enn; print(enn.__file__)"
	enn doctor
'
"""


def main():
    if platform.machine() != "x86_64":
        print("skipped: wheels are made for x86-64")
        return
    if not TOOLS.exists():
        sys.exit(f"error: {TOOLS} does not exist\nhint: make environments")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name in ("environment", "system"):
            (folder / name).mkdir()
        wheels = packed(folder)
        check_environment(wheels, folder / "environment")
        check_other_places(wheels, folder)
        skipped = check_system(wheels, folder / "system")
        print(f"skipped: the Debian without cargo: {skipped}" if skipped else "in a Debian without cargo: passed")


if __name__ == "__main__":
    main()
