#!/usr/bin/env python3
"""Puts libtorch where the build expects it: target/libtorch, or target/libtorch-cuda with --cuda; with --release 2.13 target/libtorch-2.13.

Takes the C++ part of the torch wheel on PyPI, exactly pinned by version and SHA-256, with the few CUDA libraries that
libtorch_cpu names. A verified download is kept until the folder is complete; the folder appears in one rename, so it is
either whole or not there. Where LIBTORCH or LIBTORCH_USE_PYTORCH=1 is set, that libtorch is checked and used instead; a release that
is asked for by --release is always fetched.

Needs Python 3.9 and pip; imports nothing else. Exit code 4, with one sentence and a hint, when something is missing.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
STAMP = ".complete"
# What a stamp must say; change it when the layout changes.
LAYOUT = 1
EXIT_MACHINE = 4
GIB = 1 << 30



class Wheel(NamedTuple):
    """A file on PyPI."""

    package: str
    version: str
    name: str
    sha: str


class Release(NamedTuple):
    """A release of libtorch, and the wheels it is taken from."""

    version: str
    cpu: list
    cuda: list
    # What somebody does who cannot fetch it.
    instead: str

    def wheels(self, cuda):
        return self.cpu + (self.cuda if cuda else [])

    def home(self, cuda):
        """Its folder. The release for which the workspace is made has no number in it."""
        number = "" if self is RELEASES[MAIN] else "-" + ".".join(self.version.split(".")[:2])
        return ROOT / "target" / f"libtorch{number}{'-cuda' if cuda else ''}"


# cp311 whatever Python runs this: only C++ files are taken from it.
TORCH_2_11 = Wheel("torch", "2.11.0", "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl",
                   "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a")
TORCH_2_13 = Wheel("torch", "2.13.0", "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",
                   "60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7")
# Both releases need these CUDA libraries in the same version.
RUNTIME = [
    Wheel("nvidia-cuda-runtime", "13.0.96", "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
          "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548"),
    Wheel("nvidia-cuda-cupti", "13.0.85", "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
          "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8"),
]


def headers(cublas, nccl):
    """Of these only headers are taken: the machine with the GPU brings the libraries with its own PyTorch."""
    return [
        Wheel("nvidia-cuda-crt", "13.0.88", "nvidia_cuda_crt-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
              "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4"),
        Wheel("nvidia-cuda-cccl", "13.0.85", "nvidia_cuda_cccl-13.0.85-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
              "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649"),
        cublas,
        Wheel("nvidia-cusparse", "12.6.3.3", "nvidia_cusparse-12.6.3.3-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
              "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b"),
        Wheel("nvidia-cusolver", "12.0.4.66", "nvidia_cusolver-12.0.4.66-py3-none-manylinux_2_27_x86_64.whl",
              "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112"),
        nccl,
    ]


HEADERS_2_11 = headers(
    Wheel("nvidia-cublas", "13.1.0.3", "nvidia_cublas-13.1.0.3-py3-none-manylinux_2_27_x86_64.whl",
          "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171"),
    Wheel("nvidia-nccl-cu13", "2.28.9", "nvidia_nccl_cu13-2.28.9-py3-none-manylinux_2_18_x86_64.whl",
          "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42"),
)
HEADERS_2_13 = headers(
    Wheel("nvidia-cublas", "13.1.1.3", "nvidia_cublas-13.1.1.3-py3-none-manylinux_2_27_x86_64.whl",
          "37936a16db8fe4ac1f065c2139360608a543a09275cb1a1af612e08cfa065436"),
    Wheel("nvidia-nccl-cu13", "2.29.7", "nvidia_nccl_cu13-2.29.7-py3-none-manylinux_2_18_x86_64.whl",
          "edd81538446786ec3b73972543e53bb43bcaf0bfc8ef76cb679fcc390ffe136d"),
)

# The release for which the workspace is made; worker/setup/other_release.py makes a copy of it for another one.
MAIN = "2.11"
RELEASES = {
    "2.11": Release("2.11.0", [TORCH_2_11, *RUNTIME], HEADERS_2_11,
                    "set LIBTORCH to a libtorch 2.11.0 you have, or LIBTORCH_USE_PYTORCH=1"),
    "2.13": Release("2.13.0", [TORCH_2_13, *RUNTIME], HEADERS_2_13,
                    "leave its workers out: `make wheels WORKERS='2.11-cpu 2.11-cu13'`"),
}
VERSION = RELEASES[MAIN].version

CPU_LIBS = {"libtorch_cpu.so", "libc10.so", "libgomp.so.1"}
CUDA_LIBS = CPU_LIBS | {"libtorch_cuda.so", "libc10_cuda.so", "libtorch_cuda_linalg.so", "libtorch_nvshmem.so"}
NVIDIA_LIBS = {"libcudart.so.13", "libcupti.so.13"}


class Missing(Exception):
    """Something the set-up needs is not there: a sentence and a hint."""

    def __init__(self, sentence, hint):
        super().__init__(sentence)
        self.hint = hint


# --- a libtorch of the user's own -----------------------------------------------------------------------------------


def version_of_headers(root):
    """"2.11" from torch's version header under root/include, or None."""
    for name in ("torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"):
        path = root / "include" / name
        if path.is_file():
            text = path.read_text(errors="replace")
            parts = [re.search(rf"#define TORCH_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
            if all(parts):
                return ".".join(part.group(1) for part in parts)
    return None


def check_version(found, where):
    if found is None:
        raise Missing(f"{where} holds no libtorch: include/torch/headeronly/version.h was not found",
                      "unset LIBTORCH and run `make libtorch`, which fetches one")
    if found.split("+")[0].split(".")[:2] != VERSION.split(".")[:2]:
        raise Missing(f"libtorch in {where} is version {found}, expected {VERSION}",
                      f"pip install torch=={VERSION}, or unset LIBTORCH and LIBTORCH_USE_PYTORCH and run `make libtorch`")


def of_python():
    """torch's folder inside the Python that torch-sys will ask."""
    python = "python" if os.environ.get("VIRTUAL_ENV") else "python3"
    code = "import json, torch; print(json.dumps([torch.__version__, torch.__path__[0]]))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Missing(f"LIBTORCH_USE_PYTORCH is set, but `{python} -c 'import torch'` failed: {reason}",
                      f"{python} -m pip install torch=={VERSION}, or unset LIBTORCH_USE_PYTORCH")
    version, path = json.loads(done.stdout.strip().splitlines()[-1])
    check_version(version, path)
    return Path(path)


def given():
    """The user's own libtorch, checked; None when there is none."""
    if os.environ.get("LIBTORCH_USE_PYTORCH"):
        return of_python()
    if os.environ.get("LIBTORCH"):
        root = Path(os.environ["LIBTORCH"]).resolve()
        ours = {RELEASES[MAIN].home(cuda).resolve() for cuda in (False, True)}
        if root not in ours:
            check_version(version_of_headers(root), root)
            return root
    return None


# --- ours ------------------------------------------------------------------------------------------------------------


def digest(path):
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            sha.update(block)
    return sha.hexdigest()


def pip_download(wheel, folder, release):
    with tempfile.TemporaryDirectory(dir=folder) as part:
        pins = Path(part, "pins.txt")
        pins.write_text(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha}\n")
        tags = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (28, 27, 25, 18, 17)]
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes",
                   "--no-cache-dir", "--disable-pip-version-check", "--retries=3", "--python-version=3.11",
                   "--implementation=cp", "--abi=cp311", "--abi=none", *tags, "--platform=manylinux2014_x86_64",
                   f"--dest={part}", "--quiet", f"--requirement={pins}"]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Missing(*reason_of_pip(wheel, done.stderr, release))
        found = [path for path in Path(part).iterdir() if path.suffix == ".whl"]
        if len(found) != 1 or digest(found[0]) != wheel.sha:
            raise Missing(f"pip gave another file for {wheel.package} {wheel.version} than the pinned one",
                          "a mirror or proxy may be altering files: try it with PIP_INDEX_URL=https://pypi.org/simple")
        return found[0].replace(folder / wheel.name)


def reason_of_pip(wheel, stderr, release):
    what = f"{wheel.package} {wheel.version}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip", "python3 -m ensurepip --user, or install your system's python3-pip"
    text = "\n".join(lines)
    if re.search(r"HASH|hash", text) and "DO NOT MATCH" in text:
        return (f"{what} does not have the pinned SHA-256", "a mirror or proxy may be altering files")
    if re.search(r"NewConnectionError|NameResolution|ConnectTimeout|Connection refused|ProxyError|Max retries|timed out|"
                 r"ConnectionError|from versions: none", text):
        return (f"could not download {what}: PyPI was not reached",
                f"check the network (proxies: HTTPS_PROXY, mirrors: PIP_INDEX_URL), or {release.instead}; what was downloaded is kept "
                "and the same command goes on")
    return f"could not download {what}: {lines[-1] if lines else 'pip said nothing'}", "run the same command again"


def fetch(wheel, folder, release):
    """The wheel's verified file; downloads it unless it is there and whole."""
    path = folder / wheel.name
    if path.is_file():
        if digest(path) == wheel.sha:
            return path
        path.unlink()
    print(f"libtorch: downloading {wheel.package} {wheel.version}", flush=True)
    return pip_download(wheel, folder, release)


def members(wheel, names, cuda):
    """(name in the wheel, place under the folder) of the files taken."""
    libs = CUDA_LIBS if cuda else CPU_LIBS
    for name in names:
        base = name.rsplit("/", 1)[-1]
        if name.endswith("/") or not base:
            continue
        if ".dist-info/" in name and re.match(r"(LICENSE|NOTICE|License)", base):
            yield name, f"wheel/{name}"
        elif wheel.package == "torch":
            if name.startswith("torch/include/") or (name.startswith("torch/lib/") and base in libs):
                yield name, f"wheel/{name}"
        elif base in NVIDIA_LIBS:
            yield name, f"wheel/{name}"
        elif cuda and re.match(r"nvidia/[^/]+/include/", name):
            yield name, "cuda/include/" + name.split("/include/", 1)[1]


def unpack(wheel, path, folder, cuda):
    with zipfile.ZipFile(path) as archive:
        for name, place in members(wheel, archive.namelist(), cuda):
            out = folder / place
            if folder.resolve() not in out.resolve().parents:
                raise Missing(f"{wheel.name} holds the path {name}, which leaves its folder", "do not use this wheel")
            out.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, open(out, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)


def lay_out(folder, release, cuda):
    """The links torch-sys and the dynamic linker look for."""
    (folder / "include").symlink_to("wheel/torch/include")
    (folder / "build-version").write_text(release.version + "\n")
    lib = folder / "lib"
    lib.mkdir()
    for path in sorted(folder.glob("wheel/**/lib/*.so*")):
        (lib / path.name).symlink_to(Path("..") / path.relative_to(folder))
    # torch-sys links -ltorch; the wheel's libtorch.so would ask for CUDA, this one asks for what is here.
    inputs = "libtorch_cpu.so libtorch_cuda.so" if cuda else "libtorch_cpu.so"
    (lib / "libtorch.so").write_text(f"INPUT({inputs})\n")
    for name in (CUDA_LIBS if cuda else CPU_LIBS) | NVIDIA_LIBS:
        if not (lib / name).exists():
            raise Missing(f"the wheels hold no {name}", "the pins and the layout in worker/setup/libtorch.py disagree")


def stamp_text(wheels):
    return json.dumps({"layout": LAYOUT, "wheels": [wheel[2:] for wheel in wheels]}, indent=1) + "\n"


def is_complete(home, wheels):
    stamp = home / STAMP
    return stamp.is_file() and stamp.read_text() == stamp_text(wheels)


def check_machine(folder, wanted_bytes, release):
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Missing(f"libtorch is fetched for Linux on x86_64, this is {platform.system()} on {platform.machine()}",
                      release.instead)
    free = shutil.disk_usage(folder).free
    if free < wanted_bytes:
        raise Missing(f"{folder} has {free / GIB:.1f} GiB free, libtorch needs {wanted_bytes / GIB:.1f} GiB while unpacking",
                      "free some space, or move the clone")


def replace(home, part):
    """Puts `part` at `home`; an incomplete folder, or a link somebody made, goes away."""
    if home.is_symlink():
        home.unlink()
    if not home.exists():
        part.rename(home)
        return
    old = home.with_name(part.name + ".old")
    home.rename(old)
    part.rename(home)
    shutil.rmtree(old, ignore_errors=True)


def build(home, release, cuda):
    """Fetches and unpacks into a folder beside `home`, then renames."""
    wheels = release.wheels(cuda)
    downloads = ROOT / "target" / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    check_machine(home.parent, (5 if cuda else 2) * GIB, release)
    paths = [fetch(wheel, downloads, release) for wheel in wheels]
    part = Path(tempfile.mkdtemp(prefix=home.name + ".part-", dir=home.parent))
    try:
        part.chmod(0o755)
        for wheel, path in zip(wheels, paths):
            unpack(wheel, path, part, cuda)
        lay_out(part, release, cuda)
        (part / STAMP).write_text(stamp_text(wheels))
        replace(home, part)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for path in paths:
        path.unlink()


def ensure(release, cuda):
    """Root of a complete libtorch; fetches ours when it is not there."""
    home = release.home(cuda)
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(home.parent / ".libtorch.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(home, release.wheels(cuda)):
            build(home, release, cuda)
            print(f"libtorch: {release.version} is in {home.relative_to(ROOT)}", flush=True)
    return home


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cuda", action="store_true", help="the variant with CUDA: builds anywhere, runs beside a PyTorch on a GPU machine")
    parser.add_argument("--print-lib", action="store_true", help="print only the folder for LD_LIBRARY_PATH; fetch nothing")
    parser.add_argument("--release", choices=RELEASES, help=f"fetch this one, for which the workspace is not made ({MAIN}); LIBTORCH is not read")
    arguments = parser.parse_args()
    release = RELEASES[arguments.release or MAIN]
    try:
        root = None if arguments.release else given()
        if arguments.print_lib:
            print((root or release.home(arguments.cuda)) / "lib")
        elif root is None:
            ensure(release, arguments.cuda)
        else:
            print(f"libtorch: using {root}")
    except Missing as missing:
        print(f"error: {missing}\nhint: {missing.hint}", file=sys.stderr)
        return EXIT_MACHINE
    except OSError as error:
        print(f"error: failed to set up libtorch: {error}\nhint: is there space and permission to write under {ROOT / 'target'}?",
              file=sys.stderr)
        return EXIT_MACHINE
    except KeyboardInterrupt:
        print("error: interrupted\nhint: the same command goes on with what is already downloaded", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
