"""A trained run leaves as a package of AOTInductor, compiled by the compiler that PyTorch would take, and answers in PyTorch and in libtorch as
`enn predict` does; the weights of a run that is trained anew take the place of the old ones without a compiler.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler

from _group import Group

ROOT = Path(__file__).resolve().parents[2]
ENN = Path(os.environ.get("ENN_BIN_DIR", ROOT / "target" / "release")).resolve() / "enn"
SECONDS_MAX = 540
DIFFERENCE_MAX = 1e-4
BATCH_MAX = 16

CONFIG = """
name = "small"
[data]
files = ["rows.csv"]
[data.rows]
features = ["u", "v"]
targets = ["y"]
row_id = "id"
[model]
d_model = 8
heads = 1
preset = "spatial"
spatial_depth = 1
spatial_latents = 2
fuser_latents = 2
fuser_rounds = 1
fuser_self_layers = 0
collector_depth = 0
mlp_ratio = 1.0
patch = [1]
[train]
epochs = 2
lr = 0.01
threads = 1
[cluster]
device = "cpu"
nproc_per_node = 1
"""


class Place:
    """A folder with a table, runs and packages."""

    def __init__(self, folder, compiler, group):
        self.folder, self.group, self.calls = folder, group, folder / "calls"
        # The compiler, which notes what it is asked for.
        self.compiler = folder / "compiler"
        self.compiler.write_text(f'#!/bin/sh\necho "$@" >> {self.calls}\nexec {compiler} "$@"\n')
        self.compiler.chmod(0o700)

    def run(self, *command, **variables):
        environment = {**os.environ, "PYTHON_EXEC": sys.executable, **variables}
        if command[0] == ENN:
            environment["LD_LIBRARY_PATH"] = str(ROOT / "target" / "libtorch" / "lib")
        given = {"cwd": self.folder, "env": environment, "process_group": self.group.id, "timeout": SECONDS_MAX}
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **given)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def trained(self, seed):
        self.run(ENN, "train", "small.toml", "--set", f"seed={seed}", "--runs-dir", f"runs-{seed}", "--quiet", "--baselines", "quick")
        return next((self.folder / f"runs-{seed}").glob("*/run.json")).parent

    def exported(self, run, out, *more):
        """The package, which answers in libtorch and in PyTorch as the run does; its answers, and what the compiler was asked for."""
        options = ("--to", "aoti", "--out", out, "--batch", f"1:4:{BATCH_MAX}", "--json", *more)
        told = json.loads(self.run(ENN, "export", run, *options, CXX=str(self.compiler)))
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        [one] = told["exported"]
        checked = one["sidecar"]["verified"]
        assert checked["level"] == "runtime" and checked["batches"] == [1, 2, 4, 7, 16], checked
        package, [[_, spread]] = self.folder / out / "small.aoti.pt2", one["sidecar"]["scaler"][1]
        answers = []
        for model, name in ((run, "run"), (package, "package")):
            self.run(ENN, "predict", model, "--data", "new.csv", "--out", f"{out}-{name}", "--quiet")
            answers.append(np.load(self.folder / f"{out}-{name}" / "pred.npy").ravel())
        lines = self.run(sys.executable, f"{package}.usage.py", "rows.json").split()
        answers.append(np.array([float(line) for line in lines]))
        off = max(np.abs(found - answers[0][:len(found)]).max() / spread for found in answers[1:])
        assert len(lines) == BATCH_MAX, lines
        refused = subprocess.run([sys.executable, f"{package}.usage.py", self.folder / "more.json"], capture_output=True, text=True, check=False)
        assert refused.returncode == 1 and refused.stderr.startswith("40 rows were given, this package answers at most 16 at once"), refused
        assert off < DIFFERENCE_MAX and np.ptp(answers[0]) > 0, (off, answers)
        print(f"{out}: made within {one['seconds']:.0f} s, {len(lines)} rows differ by {off:.1e} of the spread, by the check {checked['largest']:.1e}")
        return package, answers[0], calls


def main():
    try:
        compiler = get_cpp_compiler()
    except InvalidCxxCompiler:
        print("skipped: there is no C++ compiler, which AOTInductor needs")
        return
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as made, Group() as group:
        place = Place(Path(made), compiler, group)
        rows = rng.standard_normal((240, 2))
        rows = np.column_stack([np.arange(240), rows, rows[:, 0] - rows[:, 1] ** 2])
        np.savetxt(place.folder / "rows.csv", rows, "%.6g", ",", header="id,u,v,y", comments="")
        np.savetxt(place.folder / "new.csv", rows[:40, :3], "%.6g", ",", header="id,u,v", comments="")
        new = np.loadtxt(place.folder / "new.csv", delimiter=",", skiprows=1)
        (place.folder / "rows.json").write_text(json.dumps(new[:BATCH_MAX, 1:].tolist()))
        (place.folder / "more.json").write_text(json.dumps(new[:, 1:].tolist()))
        (place.folder / "small.toml").write_text(CONFIG)
        package, first, calls = place.exported(place.trained(1), "first")
        links = [call for call in calls if "-shared" in call]
        assert links and all(re.search(r"/libstdc\+\+\.so\S*$", call) for call in links), calls
        # Trained anew.
        _, second, calls = place.exported(place.trained(2), "second", "--code-of", package)
        assert not calls and np.abs(first - second).max() > 0, (calls, "other weights in the same code")


if __name__ == "__main__":
    main()
