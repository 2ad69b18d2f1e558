"""Adds a sharding strategy to a copy of the repository, builds it and trains with it: python3 tests/soak/add_a_strategy.py PROFILE

The strategy is `zero1` by another name. It takes one new file, its module and row, and its word in the configuration; if more is needed, this
fails. Two workers then train two steps with both strategies and must come to the same errors.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CARGO = os.environ.get("CARGO", "cargo")
# Where the copy is built; dependencies are compiled once.
TARGET = Path(os.environ.get("ENN_SOAK_TARGET", ROOT / "target" / "soak"))
SHARDING = "worker/src/sharding"
CONFIG = "common/src/config/train.rs"
CHANGED = {f"?? {SHARDING}/twin.rs", f"M {SHARDING}/mod.rs", f"M {SHARDING}/choice.rs", f"M {CONFIG}"}
SECONDS_MAX = 600


def replace(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, f"{path} has {text.count(old)} times {old!r}, expected 1: correct this script"
    path.write_text(text.replace(old, new))


def add(copy):
    """The change that a contributor makes."""
    text = (copy / SHARDING / "zero1.rs").read_text().replace("Zero1", "Twin").replace("`zero1`", "`twin`")
    (copy / SHARDING / "twin.rs").write_text(text)
    replace(copy / SHARDING / "mod.rs", "mod zero1;\n", "mod twin;\nmod zero1;\n")
    replace(copy / SHARDING / "choice.rs", "zero1::Zero1};", "twin::Twin, zero1::Zero1};")
    replace(copy / SHARDING / "choice.rs", "[&dyn Sharding; 4] = [", "[&dyn Sharding; 5] = [")
    replace(copy / SHARDING / "choice.rs", "&Zero1, &Hsdp", "&Zero1, &Twin, &Hsdp")
    replace(copy / CONFIG, "    Zero1,\n", "    Zero1,\n    /// `Zero1` by another name.\n    Twin,\n")
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=copy, capture_output=True, text=True, check=True).stdout
    changed = {line.strip() for line in changed.splitlines()}
    assert changed == CHANGED, f"the strategy changed {sorted(changed)}, expected {sorted(CHANGED)}"


def build(copy, profile):
    environment = {**os.environ, "CARGO_TARGET_DIR": str(TARGET)}
    if "LIBTORCH_USE_PYTORCH" not in environment:
        environment.setdefault("LIBTORCH", str(ROOT / "target" / "libtorch"))
    bins = ["-p", "enn-launcher", "-p", "enn-worker", "--bin", "enn", "--bin", "enn-worker"]
    subprocess.run([CARGO, "build", "--quiet", "--profile", profile, *bins], cwd=copy, env=environment, check=True)
    return TARGET / ("debug" if profile == "dev" else profile)


def train(copy, binaries, strategy, runs):
    """The events of two steps on two workers."""
    settings = ["train.batch=128", "train.epochs=1", "train.patience=0", "train.threads=1", f"train.strategy={strategy}"]
    command = [binaries / "enn", "train", "examples/weather/weather.toml", "--json", "--device", "cpu", "--nproc-per-node", "2"]
    command += ["--runs-dir", runs / strategy] + [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, f"enn train with {strategy} ended with {done.returncode}:\n{done.stderr}"
    events = [json.loads(line) for line in done.stdout.splitlines()]
    said = [event["decision"] for event in events if event["event"] == "decided"]
    assert f"strategy {strategy}: as asked" in said, f"{strategy}: {said}"
    [trained] = [event for event in events if event["event"] == "trained"]
    assert trained["step"] == 2, trained
    return trained["split"]


def main():
    profile = sys.argv[1] if len(sys.argv) > 1 else "release"
    # In the same place each time, so that cargo compiles again only what changed.
    copy = TARGET / "add_a_strategy"
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, copy], check=True)
    add(copy)
    binaries = build(copy, profile)
    with tempfile.TemporaryDirectory() as folder:
        found = {strategy: train(copy, binaries, strategy, Path(folder)) for strategy in ("zero1", "twin")}
    assert found["zero1"] == found["twin"], found
    print("a strategy is one file, its row and its word: it trained two steps as the strategy that it copies")


if __name__ == "__main__":
    main()
