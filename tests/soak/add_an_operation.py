"""Adds the operation of worker/CORE.md to a copy of the repository, as a file and a row, and runs the tests that loop over the table.

The example is taken from the page, so that the page stays true. Then the same with a wrong derivative, which the tests must find.
Usage: add_an_operation.py PROFILE, with libtorch in LD_LIBRARY_PATH."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

CARGO = os.environ.get("CARGO", "cargo")
ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "soak"
OP = pathlib.Path("worker/core/src/op")
CHANGED = {f" M {OP}/elementwise/mod.rs", f" M {OP}/mod.rs", f"?? {OP}/elementwise/softsign.rs"}
RIGHT = ".f_neg()?.f_add_scalar(1.0)?.f_square()?"
WRONG = ".f_neg()?.f_add_scalar(1.0)?"


def example():
    """Returns the file and the row of the example in the page."""
    page = (ROOT / "worker/CORE.md").read_text()
    section = page.split("\n## Adding an operation: one file and one row\n")[1].split("\n## ")[0]
    file, row = re.findall(r"```rust\n(.*?)```", section, re.DOTALL)[:2]
    return file, row


def insert(path, before, line):
    """Inserts a line before the last occurrence of `before`."""
    text = path.read_text()
    assert before in text, f"{path} has no {before!r}"
    head, _, tail = text.rpartition(before)
    path.write_text(head + line + before + tail)


def add(copy, file, row):
    (copy / OP / "elementwise/softsign.rs").write_text(file)
    insert(copy / OP / "elementwise/mod.rs", "pub mod swiglu;\n", "pub mod softsign;\n")
    insert(copy / OP / "mod.rs", "}\n\n#[cfg(test)]", row)
    status = subprocess.run(["git", "status", "--porcelain"], cwd=copy, check=True, capture_output=True, text=True)
    changed = set(status.stdout.splitlines())
    assert changed == CHANGED, f"changed {changed}, expected {CHANGED}"


def passes(copy, profile, tests):
    """Returns whether tests pass, each given by the arguments of cargo test."""
    cargo = [CARGO, "test", "--profile", profile, "--manifest-path", str(copy / "Cargo.toml")]
    environment = os.environ | {"CARGO_TARGET_DIR": str(TARGET)}
    for test in tests:
        subprocess.run([*cargo, "--no-run", *test], env=environment, check=True)
    return all(subprocess.run([*cargo, *test], env=environment).returncode == 0 for test in tests)


def main(profile):
    file, row = example()
    assert file.count(RIGHT) == 1, "the example's derivative is no longer where this program expects it"
    copy = TARGET / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, copy], check=True)
    add(copy, file, row)
    subprocess.run([CARGO, "fmt", "--check"], cwd=copy, check=True)
    table = ["-p", "enn-worker", "--test", "cpu", "gradcheck::"]
    hashes = ["-p", "enn-core", "--lib", "op::", "--", "--test-threads=1"]
    assert passes(copy, profile, [table, hashes]), "the tests of a new operation fail"
    (copy / OP / "elementwise/softsign.rs").write_text(file.replace(RIGHT, WRONG))
    assert not passes(copy, profile, [[*table[:-1], "gradcheck::table::"]]), "a wrong derivative is not found"
    print("an operation is one file and one row, and the tests over the table hold it")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ci")
