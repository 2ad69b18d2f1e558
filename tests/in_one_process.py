"""Tests that share what takes long to begin, all of a binary in one process: python3 tests/in_one_process.py PROFILE {libtorch,slurm}

nextest gives each test a process of its own. Libtorch takes longer to load and to end than most unit tests that use it take, and each
process of Slurm's tests starts a Slurm: they run as `cargo test` runs them. What fails, or did not come to its end, is tried once more, in
a process of its own. With --others this says, as a filter of nextest, what is left for nextest.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CARGO = os.environ.get("CARGO", "cargo")
# Packages that link libtorch, of which the tests in `src` are meant, and modules of the tests `cpu` that train nothing.
PACKAGES = ["enn-worker", "enn-core", "enn-comm", "enn-model"]
MODULES = ["gradcheck::"]
SECONDS_MAX = 1200
ALONE_SECONDS_MAX = 300
# With more failures than these the code is wrong, not the moment.
AGAIN_MAX = 20
ENDED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", re.MULTILINE)


def others():
    """The filter of nextest for all other tests."""
    libraries = f"kind(lib) & ({' | '.join(f'package({name})' for name in present())})"
    modules = f"binary(cpu) & ({' | '.join(f'test(/^{name}/)' for name in MODULES)})"
    return f"not ({libraries}) and not ({modules}) and not binary(slurm)"


def present():
    """Those of PACKAGES that are in the workspace: nextest refuses names of packages that are not."""
    asked = [CARGO, "metadata", "--no-deps", "--offline", "--format-version=1"]
    metadata = json.loads(subprocess.run(asked, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    found = {package["name"] for package in metadata["packages"]}
    return [name for name in PACKAGES if name in found]


def binaries(profile, group):
    """The test binaries of a group: name, executable, directory in which cargo would run it, and the tests of it that are meant."""
    # The whole workspace, as it was built for all tests: another choice of packages would build what they stand on again.
    targets = ["--test", "slurm"] if group == "slurm" else ["--lib", "--test", "cpu"]
    build = [CARGO, "test", "--profile", profile, "--workspace", *targets, "--no-run", "--message-format=json"]
    done = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    wanted = present()
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        folder, target = Path(message["manifest_path"]).parent, message["target"]
        package = re.search(r'^name = "(.+)"', Path(message["manifest_path"]).read_text(), re.MULTILINE)[1]
        if package in wanted and "lib" in target["kind"]:
            yield package, message["executable"], folder, []
        elif target["name"] in ("cpu", "slurm"):
            yield f"{package}::{target['name']}", message["executable"], folder, MODULES if target["name"] == "cpu" else []


def listed(executable, folder, filters):
    """Tests that are not ignored."""
    def names(*flags):
        told = subprocess.run([executable, *filters, "--list", "--format", "terse", *flags], cwd=folder, check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        return [line.removesuffix(": test") for line in told.splitlines() if line.endswith(": test")]
    ignored = set(names("--ignored"))
    return [name for name in names() if name not in ignored]


def run(command, folder, seconds):
    """Exit status and what was printed; after `seconds` it is killed."""
    try:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
        return done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        return None, (error.stdout or b"").decode(errors="replace") + f"\ndid not end within {seconds} s"


def note(package, name):
    """Says that a test passed when it was tried again, and adds it to the file $ENN_SECOND_TRIES."""
    print(f"AGAIN {package} {name}", flush=True)
    if os.environ.get("ENN_SECOND_TRIES"):
        with open(os.environ["ENN_SECOND_TRIES"], "a") as file:
            file.write(f"{package} {name}\n")


def tried(package, executable, folder, filters):
    """Whether all tests of a binary pass."""
    wanted = listed(executable, folder, filters)
    if not wanted:
        print(f"FAIL {package}: it has no tests")
        return False
    # One behind the other where libtorch is: its generator of random numbers is one for all threads.
    threads = ["--test-threads=1"] if filters or not package.endswith("::slurm") else []
    code, said = run([executable, *filters, *threads], folder, SECONDS_MAX)
    passed = {name for name, how in ENDED.findall(said) if how == "ok"}
    left = [name for name in wanted if name not in passed]
    print(f"{len(wanted) - len(left)} of {len(wanted)} tests passed: {package}", flush=True)
    if left or code:
        print(said, flush=True)
    if len(left) > AGAIN_MAX or (code != 0 and not left):
        print(f"FAIL {package}: exit status {code}, {len(left)} tests did not pass")
        return False
    failed = 0
    for name in left:
        code, said = run([executable, name, "--exact"], folder, ALONE_SECONDS_MAX)
        if code == 0 and "1 passed" in said:
            note(package, name)
        else:
            failed += 1
            print(f"FAIL {package} {name}\n{said}", flush=True)
    return failed == 0


def main():
    if sys.argv[1:] == ["--others"]:
        print(others())
        return
    profile, group = sys.argv[1:]
    if group not in ("libtorch", "slurm"):
        sys.exit(f"error: {group}: expected libtorch or slurm")
    found = list(binaries(profile, group))
    # What nextest leaves out must be here.
    expected = {"enn-tests::slurm"} if group == "slurm" else {"enn-worker::cpu", *present()}
    missing = expected - {package for package, *_ in found}
    if missing:
        sys.exit(f"error: no test binary was found of {', '.join(sorted(missing))}")
    # The longest begins first. Two at a time: each uses one core, or waits.
    found.sort(key=lambda binary: not binary[0].endswith("::cpu"))
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        results = list(pool.map(lambda binary: tried(*binary), found))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
