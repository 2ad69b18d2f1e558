"""What leaves in every format answers as `enn predict` does, for many different models: each configuration of _sweep_models.py is trained
for some steps, predicts new rows with everything that may be wrong with one, and is exported; `enn export` runs the artifacts in its own
runners, and Python does in those of their makers (_sweep_engines.py), at several batch sizes and from call to call of a stream.

    export_sweep.py [--full] [--only TEXT…] [--precision fp16] [--makers] [--jobs N] [--table FILE]

Without --full (or ENN_SWEEP=full) one configuration of each family is tried, chosen by ENN_SWEEP_SEED, and with it one in half precision.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import _sweep_models as models
from _group import Group

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BIN = Path(os.environ.get("ENN_BIN_DIR", ROOT / "target" / "release")).resolve()
SECONDS_MAX = 300
# Of an artifact in a runtime of Python's, and of one that a compiler makes before, on a machine with other work.
RUN_SECONDS_MAX, MADE_SECONDS_MAX = 60, 1200
TABLE = "| family | models |"
# Formats that the Python of this check runs, and those that have an environment of their own.
OURS, ELSEWHERE = ("onnx", "ort", "pt2"), {"tf": ("litert", "tensorflow"), "coreml": ("coreml",)}
# Made of the PT2 by _sweep_engines.py; the second one where ENN_MAKER_ENVS has an environment of it, as `make makers` leaves it.
MAKERS = ("aoti", "executorch")
# What the others have no kernels for.
BEARS = {"bf16": ("pt2", "tensorflow", *MAKERS)}
STREAMS, STEPS = 2, 4


def packages(name, group):
    """An environment that is made once; None, with a line, where its packages cannot be had."""
    target = BIN.parent
    # The interpreter behind an environment has pip.
    command = [HERE / "venv.sh", sys._base_executable, target, name]
    made = subprocess.run(command, process_group=group.id, timeout=SECONDS_MAX, check=False)
    if made.returncode != 0:
        print(f"skipped: {', '.join(ELSEWHERE[name])}; the packages could not be had")
        return None
    return target / f"venv-{name}"


def makers():
    """Pythons of the tools that are at hand, by format."""
    roots = [Path(os.environ["ENN_MAKER_ENVS"])] if "ENN_MAKER_ENVS" in os.environ else []
    made = [path for root in roots for path in root.glob("executorch-*/bin/python")]
    return dict(zip(MAKERS, [sys.executable, *made]))


class Attempt:
    """A configuration on its way through training, prediction and exports."""

    def __init__(self, number, configuration, folder, places, precision, group):
        self.number, self.configuration, self.precision, self.group = number, configuration, precision, group
        self.name = f"{number:02}" if precision == "fp32" else f"{number:02} in {precision}"
        self.folder = folder / self.name
        self.folder.mkdir()
        libraries = str(ROOT / "target" / "libtorch" / "lib")
        self.environment = {"LD_LIBRARY_PATH": libraries, **os.environ, "ENN_RUNTIMES": os.pathsep.join(map(str, places)),
                            "ENN_WORKER": str(BIN / configuration.worker)}  # fmt: skip
        self.wrong, self.found = [], {}

    def enn(self, *arguments, codes=(0,)):
        given = {"cwd": self.folder, "env": self.environment, "process_group": self.group.id, "timeout": SECONDS_MAX}
        done = subprocess.run([BIN / "enn", *map(str, arguments)], capture_output=True, text=True, check=False, **given)
        assert done.returncode in codes, f"enn {arguments[0]} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def trained(self):
        """The run's directory."""
        given = []
        for name, table in (("parent", self.configuration.parent), ("run", self.configuration.table)):
            if table is None:
                continue
            table.write(np.random.default_rng(self.number), self.folder, False)
            (self.folder / f"{name}.toml").write_text(self.configuration.text(table))
            self.enn("train", f"{name}.toml", "--runs-dir", name, "--quiet", "--baselines", "quick", *given)
            (run,) = {path.parent for path in (self.folder / name).glob("*/run.json")}
            given = ["--from", run, "--scaler", "refit"]
        return run

    def predicted(self, run):
        """Rows as they are staged, and what `enn predict` says of them."""
        (self.folder / "new").mkdir()
        files = self.configuration.table.write(np.random.default_rng(1000 + self.number), self.folder / "new", True)
        staged = lambda: set((self.folder / "run").glob(".staged/*/meta.json"))
        before = staged()
        self.enn("predict", run, *(part for file in files for part in ("--data", f"new/{file}")), "--out", "told", "--quiet")
        (place,) = (path.parent for path in staged() - before)
        x, told = np.load(place / "x.npy"), {"y": np.load(self.folder / "told" / "pred.npy")}
        x = np.where(np.load(place / "x_mask.npy") != 0, x, np.float32(np.nan))
        assert np.array_equal(np.load(place / "row_id.npy"), np.load(self.folder / "told" / "row_id.npy"))
        if self.configuration.quantiles:
            told["quantiles"] = np.load(self.folder / "told" / "levels.npy")
        answered = np.isfinite(told["y"]).reshape(len(x), -1).any(1)
        assert answered.sum() > len(x) // 2 and np.nanmax(np.ptp(told["y"][answered], 0)) > 0, "the model says the same of all rows"
        return x, told

    def streamed(self, run, x):
        """The rows of some streams, and what `enn serve` says of them from call to call: (steps, streams, …)."""
        scale = np.nanmedian(np.abs(x), 0)
        usual = np.isfinite(x[:, [0, 2]]).all(1) & (np.abs(np.nan_to_num(x)) < 100 * (1 + scale)).all(1)
        steps = x[usual][: STREAMS * STEPS].reshape(STEPS, STREAMS, -1)
        command = [BIN / "enn", "serve", run, "--addr", "0", "--json", "--stream", "--set", "train.threads=1"]
        given = {"cwd": self.folder, "env": self.environment, "process_group": self.group.id}
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **given)
        limit = threading.Timer(SECONDS_MAX, server.kill)
        limit.start()
        try:
            address, text = None, ""
            while address is None:
                line = server.stdout.readline()
                assert line, f"enn serve ended: {text}"
                text += line
                address = re.search(r'"address": *"([^"]+)"', text)

            def post(path, body):
                request = urllib.request.Request(f"http://{address[1]}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
                try:
                    return json.load(urllib.request.urlopen(request, timeout=SECONDS_MAX))
                except urllib.error.HTTPError as refused:
                    raise AssertionError(f"{path}: {refused}: {refused.read().decode()}") from refused

            streams = [post("/streams", None)["stream"] for _ in range(STREAMS)]
            rows = [[[None if np.isnan(v) else float(v) for v in row] for row in steps[:, stream]] for stream in range(STREAMS)]
            told = [post(f"/streams/{stream}", {"rows": rows[place]})["rows"] for place, stream in enumerate(streams)]
        finally:
            limit.cancel()
            server.terminate()
            server.wait()
        return steps.astype(np.float32), np.swapaxes(np.array(told, np.float32), 0, 1)

    def exported(self, run, formats):
        """What `enn export` says of each format; what it refuses is wrong."""
        options = ["--precision", self.precision]
        options += [flag for flag, asked in (("--quantiles", self.configuration.quantiles), ("--stream", self.configuration.stream)) if asked]
        said = self.enn("export", run, "--to", ",".join(formats), "--out", "out", "--batch", "1:16:64", "--json", *options, codes=(0, 5))
        for one in json.loads(said)["exported"]:
            if "error" in one:
                self.wrong.append(f"{one['format']}: {one['error']}")
            else:
                self.found[one["format"]] = one["sidecar"]

    def run(self, formats):
        try:
            run = self.trained()
            x, told = self.predicted(run)
            if self.configuration.stream:
                told["steps"], told["told"] = self.streamed(run, x)
            self.exported(run, formats)
            said = next(iter(self.found.values()), None)
            if said:
                shape = told["y"].shape[1:]
                centre, spread = np.array(said["scaler"][1], np.float64).T.reshape(2, *shape)
                usable = np.isfinite(spread) & (spread > 0)
                units = {"centre": np.where(np.isfinite(centre), centre, 0), "spread": np.where(usable, spread, 1)}
                if "told" in told:
                    # Behind the cells are other levels, and why a row has no answer.
                    told["told"] = told["told"][..., : np.prod(shape)].reshape(STEPS, STREAMS, *shape)
                np.savez(self.folder / "case.npz", x=x, **units, **told)
        except Exception as error:  # noqa: BLE001
            self.wrong.append(f"{type(error).__name__}: {error}")
        return self

    def jobs(self, formats):
        said = [(one, self.found[made]["artifact"]) for one in formats if (made := "pt2" if one in MAKERS else one) in self.found]
        out, case = self.folder / "out", str(self.folder / "case.npz")
        return [{"name": self.name, "format": one, "artifact": str(out / artifact), "case": case} for one, artifact in said]


def compared(python, jobs, folder, group):
    """What a Python's runtimes answer, by attempt and format."""
    if not jobs:
        return {}
    path = folder / f"jobs-{jobs[0]['format']}.json"
    path.write_text(json.dumps(jobs))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment.pop("LD_LIBRARY_PATH", None)
    seconds = sum(MADE_SECONDS_MAX if job["format"] in MAKERS else RUN_SECONDS_MAX for job in jobs)
    given = {"env": environment, "process_group": group.id, "timeout": seconds}
    try:
        done = subprocess.run([python, HERE / "_sweep_engines.py", path], capture_output=True, check=False, **given)
        ended = f"ended with {done.returncode} before it: {done.stderr[-2000:].decode(errors='replace')}"
    except subprocess.TimeoutExpired as late:
        done, ended = late, f"did not come to it within {seconds} s"
    lines = [json.loads(line) for line in (done.stdout or b"").splitlines() if line.startswith(b"{") and line.endswith(b"}")]
    found = {(line["name"], line["format"]): line for line in lines}
    # What the others have found is told all the same.
    for job in jobs:
        found.setdefault((job["name"], job["format"]), {"wrong": f"{python} {ended}"})
    return found


def drawn(pairs):
    """One of each family."""
    draw = random.Random(int(os.environ.get("ENN_SWEEP_SEED", "0")))
    families = dict.fromkeys(one.family for _, one in pairs)
    return [draw.choice([pair for pair in pairs if pair[1].family == family]) for family in families]


def chosen(wanted):
    """Numbers, configurations and their precisions: all, or one of each family; and one in half precision."""
    every = list(enumerate(models.configurations()))
    if wanted.only:
        return [(number, one, wanted.precision) for number, one in every if any(text in f"{one.family}: {one.name}" for text in wanted.only)]
    some = [(*pair, wanted.precision) for pair in (every if wanted.full else drawn(every))]
    half = "fp16" if wanted.precision == "fp32" else wanted.precision
    return some + [more for number, one in every if one.name == models.LARGE_AND_SMALL and (more := (number, one, half)) not in some]


def table(attempts, found, formats):
    """The largest and the mean difference of each family in each format: of Python's runtimes, or of enn's own, whichever is larger."""
    lines = [f"{TABLE} " + " | ".join(formats) + " |", "|---|--:|" + "---|" * len(formats)]
    for family in [*dict.fromkeys(attempt.configuration.family for attempt in attempts), None]:
        members = [attempt for attempt in attempts if family in (attempt.configuration.family, None)]
        cells = []
        for one in formats:
            theirs = {m.name: found[(m.name, one)] for m in members if (m.name, one) in found}
            ours = {m.name: m.found[one]["verified"] for m in members if one in m.found and m.found[one]["verified"]["level"] == "runtime"}
            differences = [*theirs.values(), *ours.values()]
            largest, mean = (max((d[key] for d in differences if key in d), default=float("nan")) for key in ("largest", "mean"))
            count = len({*theirs, *ours})
            cells.append(f"{largest:.0e}, {mean:.0e}{f' of {count}' if count < len(members) else ''}" if count else "")
        lines.append(f"| {family or 'all'} | {len(members)} | " + " | ".join(cells) + " |")
    return lines


def put(lines, path):
    """In a file that has such a table."""
    before, at, behind = path.read_text().partition(TABLE)
    assert at, f"{path} has no line that begins with {TABLE}"
    old = (at + behind).split("\n")
    rest = next(number for number, line in enumerate(old) if not line.startswith("|"))
    path.write_text(before + "\n".join([*lines, *old[rest:]]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", default=os.environ.get("ENN_SWEEP") == "full", help="every configuration")
    parser.add_argument("--only", metavar="TEXT", nargs="+", help="configurations with one of these in their family or name")
    parser.add_argument("--precision", default="fp32", help="of the artifacts, each held to what its own check allows")
    parser.add_argument("--makers", action="store_true", help=f"one of each family in {', '.join(MAKERS)} as well")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="configurations at a time")
    parser.add_argument("--table", metavar="FILE", type=Path, help="put the differences in place of those in this file, launcher/export/FORMATS.md")
    wanted = parser.parse_args()
    if wanted.table and wanted.precision != "fp32":
        parser.error("--table is for fp32")
    begun, group = time.monotonic(), Group()
    bears = lambda formats: [one for one in formats if one in BEARS.get(wanted.precision, formats)]
    environments = {name: place for name in ELSEWHERE if bears(ELSEWHERE[name]) and (place := packages(name, group))}
    pythons = [(sys.executable, bears(OURS)), *((place / "bin" / "python", bears(ELSEWHERE[name])) for name, place in environments.items())]
    formats = [one for _, own in pythons for one in own]
    compilers = makers() if wanted.makers else {}
    pythons += [(python, [one]) for one, python in compilers.items()]
    places = [sys.prefix, *environments.values()]
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(wanted.jobs) as pool, group:
        folder = Path(made)
        attempts = [Attempt(number, one, folder, places, precision, group) for number, one, precision in chosen(wanted)]
        swept = [attempt for attempt in attempts if attempt.precision == wanted.precision]
        compiled = [attempt for attempt, _ in drawn([(attempt, attempt.configuration) for attempt in swept])]
        list(pool.map(lambda attempt: attempt.run(formats), attempts))
        print(f"{len(attempts)} configurations trained, predicted with and exported after {time.monotonic() - begun:.0f} s", flush=True)
        own = lambda attempt, formats: [one for one in formats if one not in MAKERS or attempt in compiled]
        jobs = [(python, [job for attempt in attempts for job in attempt.jobs(own(attempt, some))]) for python, some in pythons]
        found = {key: line for part in pool.map(lambda pair: compared(*pair, folder, group), jobs) for key, line in part.items()}
    for attempt in attempts:
        lines = [f"{one} by Python: {line['wrong']}" for (name, one), line in found.items() if name == attempt.name and line["wrong"]]
        attempt.wrong += lines
        figures = [line["largest"] for (name, _), line in found.items() if name == attempt.name and "largest" in line]
        print(f"{attempt.name} {attempt.configuration.family}: {attempt.configuration.name}: {max(figures, default=float('nan')):.1e}")
        for wrong in attempt.wrong:
            print(f"   WRONG {wrong}")
    wrong = sum(bool(attempt.wrong) for attempt in attempts)
    print(f"{len(attempts)} configurations, {len(found)} artifacts run by Python's runtimes, {wrong} configurations wrong, {time.monotonic() - begun:.0f} s")
    assert attempts and found and not wrong
    if wanted.table:
        put(table(swept, found, [*formats, *compilers]), wanted.table)


if __name__ == "__main__":
    main()
