"""The checks of checkpoints once more, in the oldest and the newest PyTorch that we claim to exchange them with: both ways, DCP, torch.load
and safetensors. 2.6 comes from Debian 13's packages, because the one on PyPI needs 4 GB of CUDA; it runs with its own C library, and needs
no root. 2.15 is PyPI's, with most of its CUDA libraries from target/venv.

    make releases       environments in target/envs, made once: 3 GB
"""

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKS = ["ckpt_read_by_torch", "ckpt_written_by_torch", "ckpt_models"]
SECONDS_MAX = 900

APT = """Dir::State "{0}/state";
Dir::State::status "{0}/status";
Dir::Cache "{0}/cache";
Dir::Etc::sourcelist "{0}/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::preferencesparts "-";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
"""
SOURCE = "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main\n"
# Needed by what nothing here loads.
LEFT_OUT = ("libllvm", "libamd", "libhsa", "libz3", "libtorch-test", "python3-networkx")
# With the libraries that it needs newer than target/venv has them.
NEWEST = ["torch==2.15.0", "nvidia-nccl-cu13==2.30.7", "nvidia-nvshmem-cu13==3.7.2"]
PYTHON = """#!/bin/sh
# Python with its own C library and no other's modules; it takes this file for itself.
export PYTHONHOME={root}/usr PYTHONPATH={root}/usr/lib/python3/dist-packages PYTHONNOUSERSITE=1
exec {loader} --library-path {libraries} --argv0 {python} {root}/usr/bin/python3 "$@"
"""


def run(*command, **more):
    subprocess.run([str(word) for word in command], check=True, timeout=SECONDS_MAX, **more)


def debian(place):
    """PyTorch 2.6 below `place`: its Python."""
    python = place / "python"
    if python.exists():
        return python, {}
    apt, root = place / "apt", place / "root"
    for folder in ["state/lists/partial", "cache/archives/partial"]:
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(SOURCE)
    (apt / "apt.conf").write_text(APT.format(apt))
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    for words in [["update"], ["install", "--yes", "--download-only", "python3-torch", "python3-safetensors"]]:
        run("apt-get", "--quiet", *words, env=environment, stdout=subprocess.DEVNULL)
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        if not package.name.startswith(LEFT_OUT):
            run("dpkg-deb", "--extract", package, root)
    shutil.rmtree(apt)
    [loader] = glob.glob(f"{root}/usr/lib64/ld-linux-x86-64.so.2")
    # Debian chooses among several libraries of one name by links that are made when a package is installed.
    own = root / "usr/lib/x86_64-linux-gnu"
    libraries = [own, own / "blas", own / "lapack", root / "usr/lib"]
    text = PYTHON.format(root=root, loader=loader, libraries=":".join(map(str, libraries)), python=python)
    python.write_text(text)
    python.chmod(0o755)
    return python, {}


def pypi(place, packages):
    """A release of PyPI's below `place`, for this Python, with the other packages of this one."""
    if not (place / ".complete").exists():
        run(sys._base_executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", place, *packages)
        [nvidia] = Path(sys.prefix).glob("lib/python*/site-packages/nvidia")
        for library in nvidia.iterdir():
            own = place / "nvidia" / library.name
            if not own.exists():
                own.symlink_to(library)
        (place / ".complete").touch()
    return sys.executable, {"PYTHONPATH": str(place)}


def main():
    envs = Path(os.environ.get("ENN_BIN_DIR", "target/release")).resolve().parent / "envs"
    releases = {"2.6.0": lambda: debian(envs / "torch-2.6"), "2.15.0": lambda: pypi(envs / "torch-2.15", NEWEST)}
    failed = 0
    for release, make in releases.items():
        python, more = make()
        environment = {**os.environ, **more}
        # Our libtorch is another release's.
        environment.pop("LD_LIBRARY_PATH", None)
        told = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], env=environment, text=True, capture_output=True)
        assert told.stdout.startswith(release), f"expected torch {release}, found {told.stdout}{told.stderr}"
        for check in CHECKS:
            done = subprocess.run([python, HERE / f"{check}.py"], env=environment, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=SECONDS_MAX, cwd=HERE.parents[1])  # fmt: skip
            print(f"{'PASS' if done.returncode == 0 else 'FAIL'} torch {told.stdout.strip()} {check}", flush=True)
            if done.returncode or os.environ.get("ENN_VERBOSE"):
                print(done.stdout)
            failed += done.returncode != 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
