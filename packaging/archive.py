#!/usr/bin/env python3
"""Makes the release archive of the two wheels, for machines without pip: enn-VERSION-x86_64-linux.tar.gz with its digest beside it, and
install.sh, which checks the digest.

The archive holds `bin/enn`, `bin/enn-torchrun`, the workers in `lib/enn_train` and the Python package in `lib/enn/python`: in this layout
`enn` finds its workers (launcher/src/libtorch/worker.rs).
"""

import argparse
import hashlib
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXIT_MACHINE = 4


def only(wheels, name):
    found = list(wheels.glob(f"{name}-*.whl"))
    if len(found) != 1:
        print(f"error: {wheels} has {len(found)} wheels {name}, expected one\nhint: make wheels", file=sys.stderr)
        sys.exit(EXIT_MACHINE)
    return found[0]


def place(name):
    """Where a file of a wheel lies in the archive; None for what an archive does not need."""
    if found := re.fullmatch(r"enn_run-[^/]*\.data/scripts/(enn)", name):
        return f"bin/{found.group(1)}"
    if found := re.fullmatch(r"[^/]*\.dist-info/licenses/(LICENSE)", name):
        return f"lib/enn/{found.group(1)}"
    if name.startswith("enn/"):
        return f"lib/enn/python/{name}"
    return f"lib/{name}" if name.startswith("enn_train/") else None


def unpack(wheel, tree):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.is_dir() or not (to := place(member.filename)):
                continue
            path = tree / to
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            path.chmod(0o755 if "/bin/" in f"/{to}" else 0o644)


def plain(member):
    """The same bytes whoever makes the archive, and whenever."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = "root"
    return member


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--wheels", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    wheels = [only(arguments.wheels, name) for name in ("enn_run", "enn_train")]
    version = wheels[0].name.split("-")[1]
    archive = arguments.out / f"enn-{version}-x86_64-linux.tar.gz"
    with tempfile.TemporaryDirectory(dir=arguments.out) as folder:
        tree = Path(folder, f"enn-{version}")
        for wheel in wheels:
            unpack(wheel, tree)
        (tree / "bin/enn-torchrun").symlink_to("enn")
        with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
            tar.add(tree, tree.name, filter=plain)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    archive.with_name(archive.name + ".sha256").write_text(f"{digest}  {archive.name}\n")
    shutil.copy(HERE / "install.sh", arguments.out)
    print(f"{archive}  {archive.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
