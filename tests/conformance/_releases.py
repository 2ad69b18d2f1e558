"""Checks once more, in other releases of PyTorch than that of target/venv.

Checkpoints, in the oldest and the newest PyTorch that we claim to exchange them with: both ways, DCP, torch.load and safetensors. `enn run`
beside torchrun, in the oldest and the newest torchrun whose command line we claim to take, and in that of target/venv; what the releases
between have is known by their flags (_torchrun_flags.py). What was found goes into docs/torchrun-releases.md.

2.6 comes from Debian 13's packages; it runs with its own C library, and needs no root. 2.8 is PyPI's without its CUDA libraries, of which
it calls none (_cuda_stubs.py): 0.9 GB to load. 2.15 is PyPI's, with most of its CUDA libraries from target/venv.

    make releases       environments in target/envs, made once: 5 GB
    ENN_RELEASES=2.8.0 …    some of them
"""

import datetime
import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import _cuda_stubs
import _torchrun_flags

HERE = Path(__file__).resolve().parent
CHECKPOINTS = ["ckpt_read_by_torch", "ckpt_written_by_torch", "ckpt_models"]
LAUNCHER = ["launcher_scripts", "launcher_training"]
FORKED = "launcher_preload"
SECONDS_MAX = 1800
PAGE = HERE.parents[1] / "docs" / "torchrun-releases.md"
BEGIN, END = "<!-- made by `make releases` -->", "<!-- end of what is made -->"

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
# The runtime is NVIDIA's, the other libraries are stood in for. torch.compile looks at Triton on the CPU, too.
OLDEST = ["torch==2.8.0", "triton==3.4.0", "nvidia-cuda-runtime-cu12==12.8.90"]
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


def once(place, packages, finish):
    """Packages of PyPI below `place`, for this Python and with its other packages, once for each list of them; `finish` completes them."""
    stamp, wanted = place / ".complete", " ".join(packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        run(sys._base_executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", place, *packages)
        finish()
        stamp.write_text(wanted)
    return sys.executable, {"PYTHONPATH": str(place)}


def pypi(place, packages):
    """A release with CUDA's libraries, most of them those of this Python."""

    def link_libraries():
        [nvidia] = Path(sys.prefix).glob("lib/python*/site-packages/nvidia")
        for library in nvidia.iterdir():
            own = place / "nvidia" / library.name
            if not own.exists():
                own.symlink_to(library)

    return once(place, packages, link_libraries)


def without_cuda(place, packages):
    """A release that is used on the CPU only, with stand-ins for CUDA's libraries."""
    return once(place, packages, lambda: print(f"stand-ins for {', '.join(_cuda_stubs.main(place / 'torch'))}", flush=True))


def check(python, environment, name):
    """Whether a check passes in an environment, and what it said."""
    done = subprocess.run([python, HERE / f"{name}.py"], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=SECONDS_MAX, cwd=HERE.parents[1])  # fmt: skip
    return done.returncode == 0, done.stdout


def cases(said):
    """Names of the cases that passed."""
    return re.findall(r"^  ok   (\S+)", said, re.MULTILINE)


def table(tested):
    """Rows of the page: each release by its flags, and what was run in those that are installed."""
    recorded, known, rows = _torchrun_flags.recorded(), set(), []
    for release, flags in sorted(recorded.items(), key=lambda item: [int(part) for part in item[0].split(".")]):
        new = sorted(set(flags) - known) if known else []
        gone = sorted(known - set(flags))
        known = set(flags)
        words = ", ".join([f"`{flag}`" for flag in new] + [f"without `{flag}`" for flag in gone]) or "–"
        rows.append(f"| {release.removesuffix('.0')} | {len(flags)} | {words} | {tested.get(release, 'by its flags')} |")
    return ["| torch | flags | new flags | tested |", "|---|---|---|---|", *rows]


def write_page(tested):
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    day = datetime.date.today().isoformat()
    lines = [BEGIN, "", *table(tested), "", f"Written on {day} by `make releases`.", "", END]
    PAGE.write_text(before + "\n".join(lines) + after)


def probes():
    """The probes of the fork servers with each Python from 3.10 to 3.14 that is here, and with PyTorch; how many of them differ."""
    failed = 0
    for minor in range(10, 15):
        python = shutil.which(f"python3.{minor}")
        # A shim of a version manager may stand for a version that is not there.
        if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode != 0:
            print(f"LEFT OUT fork server, Python 3.{minor} is not here", flush=True)
            continue
        failed += compared(f"fork server, Python 3.{minor}", python, [])
        failed += compared(f"warm server, Python 3.{minor}", python, ["--warm"])
    return failed + compared("warm server, PyTorch", sys.executable, ["--torch", "--warm"])


def compared(name, python, flags):
    """Whether the probes differ with this Python; what they printed is shown if so."""
    client = HERE.parents[0] / "preload_probes" / "client.py"
    done = subprocess.run([python, client, python, *flags], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    print(f"{'FAIL' if done.returncode else 'PASS'} {name}", flush=True)
    if done.returncode:
        print(done.stdout)
    return bool(done.returncode)


def main():
    envs = Path(os.environ.get("ENN_BIN_DIR", "target/release")).resolve().parent / "envs"
    here = lambda: (sys.executable, {})
    releases = {
        "2.6.0": (lambda: debian(envs / "torch-2.6"), CHECKPOINTS),
        "2.8.0": (lambda: without_cuda(envs / "torch-2.8", OLDEST), [*LAUNCHER, FORKED]),
        "2.11.0": (here, [*LAUNCHER, FORKED]),
        "2.15.0": (lambda: pypi(envs / "torch-2.15", NEWEST), [*CHECKPOINTS, *LAUNCHER, FORKED]),
    }
    chosen = os.environ.get("ENN_RELEASES", "").split() or list(releases)
    failed, tested = probes(), {}
    for release in chosen:
        make, checks = releases[release]
        python, more = make()
        environment = {**os.environ, **more}
        # Our libtorch is another release's.
        environment.pop("LD_LIBRARY_PATH", None)
        told = subprocess.run([python, "-c", "import torch; print(torch.__version__, torch.__path__[0])"], env=environment, text=True, capture_output=True)
        assert told.stdout.startswith(release), f"expected torch {release}, found {told.stdout}{told.stderr}"
        version, path = told.stdout.split()
        passed, forked = [], 0
        if release in _torchrun_flags.recorded():
            found = _torchrun_flags.of_python(Path(path).parent)
            assert found == _torchrun_flags.recorded()[release], f"{_torchrun_flags.FILE} has other flags for {release} than {path}"
        for name in checks:
            ok, said = check(python, environment, name)
            print(f"{'PASS' if ok else 'FAIL'} torch {version} {name}", flush=True)
            if not ok or os.environ.get("ENN_VERBOSE"):
                print(said)
            failed += not ok
            passed += cases(said) if name in LAUNCHER else []
            forked += len(cases(said)) if name == FORKED else 0
        if passed:
            training = [name for name in passed if name in ("ddp", "fsdp2", "accelerate")]
            tested[release] = f"installed: {len(passed) - len(training)} cases of scripts beside torchrun, {', '.join(training)}; {forked} of forked workers"
    if not failed and all(release in tested for release, (_, checks) in releases.items() if LAUNCHER[0] in checks):
        write_page(tested)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
