"""Adds the operation of worker/CORE.md to a copy of the repository, as a file and a row, and runs the tests that loop over the table.

The example is taken from the page, so that the page stays true. Then the same with a wrong derivative, which the tests must find.
Usage: add_an_operation.py PROFILE, with libtorch in LD_LIBRARY_PATH."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
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


def passes(copy, profile):
    """Returns whether the tests over the table pass."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "soak"
    cargo = [os.environ.get("CARGO", "cargo"), "test", "--profile", profile, "--manifest-path", str(copy / "Cargo.toml")]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target)}
    tests = [["-p", "enn-core", "--lib", "op::", "--", "--test-threads=1"], ["-p", "enn-worker", "--test", "cpu", "gradcheck::"]]
    for test in tests:
        subprocess.run([*cargo, "--no-run", *test], env=environment, check=True)
    return all(subprocess.run([*cargo, *test], env=environment).returncode == 0 for test in tests)


def main(profile):
    file, row = example()
    assert file.count(RIGHT) == 1, "the example's derivative is no longer where this program expects it"
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "copy"
        subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, copy], check=True)
        add(copy, file, row)
        subprocess.run(["cargo", "fmt", "--check"], cwd=copy, check=True)
        assert passes(copy, profile), "the tests of a new operation fail"
        (copy / OP / "elementwise/softsign.rs").write_text(file.replace(RIGHT, WRONG))
        assert not passes(copy, profile), "the tests pass although a derivative is wrong"
    print("an operation is one file and one row, and the tests over the table hold it")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ci")
