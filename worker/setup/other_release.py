#!/usr/bin/env python3
"""Copies the workspace for another release of libtorch than the one for which it is made.

    other_release.py 2.13 FOLDER

Each release of libtorch needs its own release of tch and torch-sys, and one Cargo.lock holds only one of them. So FOLDER gets the files that
git knows or would take, with these two renewed in Cargo.toml and Cargo.lock; all else stays as it is, and `cargo build --locked` accepts it.
A file that is the same keeps its time, so that cargo builds again only what has changed; what is not in the workspace any more goes away.

Needs Python 3.9 and git; imports nothing else.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXIT_MACHINE = 4
# For each release of libtorch the release of tch and torch-sys, which depend on the same packages in all of them, and the SHA-256 of both.
CRATES = {
    "2.13": ("0.26.0", {
        "tch": "975b1fb3b612ba925f03dd08b56e5c9452bb7102891d5d9f58c19b49a0b2ec1e",
        "torch-sys": "5ae60ab95333c42adcc1a9e74057357e4324a1f344c403e48712a144ab731019",
    }),
}
# Of a folder that this script may change; anything else may be somebody's work.
STAMP = ".other-release"


class Refused(Exception):
    """The copy cannot be made: a sentence and a hint."""

    def __init__(self, sentence, hint):
        super().__init__(sentence)
        self.hint = hint


def replaced(pattern, text, new, what):
    """The text with the one place of a pattern replaced."""
    changed, places = re.subn(pattern, new, text, flags=re.MULTILINE)
    if places != 1:
        raise Refused(f"{what} is found {places} times, expected once", "worker/setup/other_release.py must learn how it is written now")
    return changed


def manifest(text, release):
    version, checksums = CRATES[release]
    for name in checksums:
        text = replaced(rf'^({name} = {{ version = ")=[\d.]+"', text, rf'\g<1>={version}"', f"the requirement of {name} in Cargo.toml")
    return text


def lock(text, release):
    version, checksums = CRATES[release]
    for name, checksum in checksums.items():
        entry = rf'^(name = "{name}"\nversion = ")[\d.]+("\nsource = ".*"\nchecksum = ")[0-9a-f]+"'
        text = replaced(entry, text, rf'\g<1>{version}\g<2>{checksum}"', f"the entry of {name} in Cargo.lock")
    return text


CHANGES = {"Cargo.toml": manifest, "Cargo.lock": lock}


def workspace():
    """Names of its files: those that git knows, and new ones that it does not ignore."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True)
    except FileNotFoundError as error:
        raise Refused("git was not found", "install git, or leave out the workers of other releases") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise Refused(f"git does not list the files of {ROOT}: {said}", "build in a clone of the repository")
    names = {name.decode() for name in done.stdout.split(b"\0") if name}
    return {name for name in names if (ROOT / name).is_file()}


def write(path, data, mode):
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def copy(release, folder):
    if folder.is_dir() and any(folder.iterdir()) and not (folder / STAMP).is_file():
        raise Refused(f"{folder} is not a copy of the workspace", "name a folder that is empty or does not exist")
    names = workspace()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STAMP).touch()
    for name in sorted(names):
        data = (ROOT / name).read_bytes()
        if name in CHANGES:
            data = CHANGES[name](data.decode(), release).encode()
        write(folder / name, data, (ROOT / name).stat().st_mode & 0o777)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.name != STAMP and path.relative_to(folder).as_posix() not in names:
            path.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("release", choices=CRATES)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    try:
        copy(arguments.release, arguments.folder.resolve())
    except Refused as refused:
        print(f"error: {refused}\nhint: {refused.hint}", file=sys.stderr)
        return EXIT_MACHINE
    except OSError as error:
        print(f"error: failed to copy the workspace: {error}\nhint: is there space and permission to write?", file=sys.stderr)
        return EXIT_MACHINE
    return 0


if __name__ == "__main__":
    sys.exit(main())
