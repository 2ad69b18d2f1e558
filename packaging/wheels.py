#!/usr/bin/env python3
"""Packs programs that are built already into the wheels `enn-run` and `enn-train`.

    wheels.py --enn FILE --worker 2.11-cpu=FILE --worker 2.11-cu13=FILE --out FOLDER

`enn-run` holds the program `enn`, a script `enn-torchrun` and the Python package `enn` (the folder python/enn). `enn-train` holds one
program enn-worker for each release of libtorch, for CPUs and for GPUs; the name after --worker says which: it becomes the name of the file,
from which `enn` chooses (launcher/src/libtorch/worker.rs). The platform in a wheel's name is the oldest one on which auditwheel finds that
its programs start; libtorch and CUDA's runtime are not in it, since the user's torch has them.

Run by the Python of target/venv-wheels, which has `wheel` and `auditwheel`; `make wheels` makes it.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXIT_MACHINE = 4
# Libraries that the user's torch has.
OF_TORCH = re.compile(r"lib(torch\w*|c10\w*|cudart|gomp)\.so.*")
WORKER = re.compile(r"\d+\.\d+-(cpu|cu\d+)")

ENN_TRAIN = '''"""Programs `enn-worker` for the libtorch inside PyTorch, in the folder `bin`. The program `enn` of the package `enn-run` starts one of them."""

__version__ = "{version}"
'''

ENN_RUN_PAGE = """\
# enn-run

- `enn run` starts scripts of PyTorch with torchrun's command line, keeps them alive and says why a process died; `enn-torchrun` is the same
  program with torchrun's exit codes.
- `enn train` trains a model on a table. It also needs the package enn-train.
- `import enn` has both for Python: `enn.train`, and `enn.elastic`, with which a script goes on when one of its processes dies.

This package does not install PyTorch: install the variant that you want. `enn doctor` says what a machine lacks.
"""

ENN_TRAIN_PAGE = """\
# enn-train

The workers of `enn train`: one program for each release of PyTorch that is served, for CPUs and for GPUs. The program `enn`, of the package
enn-run, starts the one that fits the PyTorch that is installed.

This package does not install PyTorch, which has variants for GPUs and for CPUs: install the one you want. These are served:

{releases}
"""


class Refused(Exception):
    """Something is missing or wrong: a sentence and a hint."""

    def __init__(self, sentence, hint):
        super().__init__(sentence)
        self.hint = hint


def version():
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    found = re.search(r'^__version__ = "(.*)"$', (ROOT / "python/enn/__init__.py").read_text(), re.MULTILINE)
    if not found or found.group(1) != cargo:
        raise Refused(f"python/enn/__init__.py is version {found and found.group(1)}, Cargo.toml is {cargo}", "give both the same version")
    return cargo


def put(source, place, strip):
    if not source.is_file():
        raise Refused(f"{source} does not exist", "build it first, as `make wheels` does")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, place)
    place.chmod(0o755)
    if strip:
        done = subprocess.run(["strip", "--strip-debug", place], capture_output=True, text=True)
        if done.returncode != 0:
            raise Refused(f"strip {place.name} failed: {done.stderr.strip()}", "install binutils, or leave out --strip")


def metadata(fields, page):
    """The file METADATA, and what else is the same in each wheel."""
    return "".join(f"{name}: {value}\n" for name, value in fields) + "\n" + page


def info(folder, name, fields, page):
    """Writes NAME.dist-info, without RECORD, which `wheel pack` writes."""
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    place = folder / f"{name.replace('-', '_')}-{version()}.dist-info"
    (place / "licenses").mkdir(parents=True)
    shutil.copyfile(ROOT / "LICENSE", place / "licenses/LICENSE")
    always = [
        ("Metadata-Version", "2.4"), ("Name", name), ("Version", version()), ("License-Expression", "MIT"), ("License-File", "LICENSE"),
        ("Requires-Python", project["requires-python"]), ("Description-Content-Type", "text/markdown"),
    ]
    (place / "METADATA").write_text(metadata(always + fields, page))
    (place / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: enn\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n")
    return place


def enn_run(folder, enn, strip):
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    shutil.copytree(ROOT / "python/enn", folder / "enn", ignore=shutil.ignore_patterns("__pycache__"))
    put(enn, folder / f"enn_run-{version()}.data/scripts/enn", strip)
    fields = [("Summary", project["description"])]
    for extra, packages in project["optional-dependencies"].items():
        fields.append(("Provides-Extra", extra))
        fields += [("Requires-Dist", f'{package}; extra == "{extra}"') for package in packages]
    place = info(folder, "enn-run", fields, ENN_RUN_PAGE)
    scripts = "".join(f"{name} = {function}\n" for name, function in project["scripts"].items())
    (place / "entry_points.txt").write_text(f"[console_scripts]\n{scripts}")


def enn_train(folder, workers, strip):
    package = folder / "enn_train"
    for name, file in workers.items():
        put(file, package / f"bin/enn-worker-{name}", strip)
    (package / "__init__.py").write_text(ENN_TRAIN.format(version=version()))
    names = [name.replace("-cpu", ", for CPUs").replace("-cu", ", for GPUs with CUDA ") for name in workers]
    page = ENN_TRAIN_PAGE.format(releases="\n".join(f"- PyTorch {name}" for name in names))
    fields = [("Summary", "The workers of enn train"), ("Requires-Dist", f"enn-run=={version()}")]
    info(folder, "enn-train", fields, page)


def tool(name, *arguments):
    done = subprocess.run([sys.executable, "-m", name, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Refused(f"{name} {arguments[0]} failed: {last}", "run this by the Python of target/venv-wheels, which `make wheels` makes")
    return done.stdout


def platform(wheel):
    """The oldest platform that has all symbols which the programs of a wheel need, e.g. manylinux_2_28_x86_64."""
    report = json.loads(tool("auditwheel", "show", "--json", "--disable-isa-ext-check", wheel))
    others = sorted(name for name in report["external_libs"] if not OF_TORCH.fullmatch(name))
    if others:
        raise Refused(f"a program in {wheel.name} needs {', '.join(others)}, which neither the system nor torch has", "link it statically")
    return report["sym_tag"]


def pack(folder, out):
    """Packs a folder, names the wheel for the platform that its programs need, and moves it to `out`."""
    with tempfile.TemporaryDirectory(dir=out) as part:
        tool("wheel", "pack", folder, "--dest-dir", part)
        wheel = next(Path(part).glob("*.whl"))
        tag = platform(wheel)
        named = tool("wheel", "tags", "--remove", "--platform-tag", tag, wheel).split()[-1]
        return Path(part, named).replace(out / named)


def made(name, fill, out):
    for old in out.glob(f"{name}-*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=out) as folder:
        fill(Path(folder))
        wheel = pack(Path(folder), out)
    print(f"{wheel}  {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    return wheel


def worker(text):
    name, _, file = text.partition("=")
    if not WORKER.fullmatch(name) or not file:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 2.11-cpu=FILE or 2.11-cu13=FILE")
    return name, Path(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--enn", type=Path, required=True, metavar="FILE", help="the program enn")
    parser.add_argument("--worker", type=worker, action="append", required=True, metavar="2.11-cpu=FILE", help="a program enn-worker")
    parser.add_argument("--strip", action="store_true", help="without what only debuggers read")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--enn-run-mb-max", type=float, default=float("inf"), metavar="MB", help="the most that the wheel enn-run may have")
    arguments = parser.parse_args()
    try:
        out = arguments.out.resolve()
        out.mkdir(parents=True, exist_ok=True)
        wheel = made("enn_run", lambda folder: enn_run(folder, arguments.enn, arguments.strip), out)
        if wheel.stat().st_size > arguments.enn_run_mb_max * 1e6:
            raise Refused(f"{wheel.name} has {wheel.stat().st_size / 1e6:.1f} MB, at most {arguments.enn_run_mb_max} are allowed",
                          "build with --release, and strip the program enn")
        made("enn_train", lambda folder: enn_train(folder, dict(arguments.worker), arguments.strip), out)
    except Refused as refused:
        print(f"error: {refused}\nhint: {refused.hint}", file=sys.stderr)
        return EXIT_MACHINE
    return 0


if __name__ == "__main__":
    sys.exit(main())
