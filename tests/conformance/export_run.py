"""A trained run's exports answer in onnxruntime and PyTorch what `enn predict` answers, from nothing but the artifact, the file beside it and
the rows as a user has them: with columns of every kind, missing values and quantiles; and so does `enn predict` with the artifact alone. The
programs beside the artifacts are built and run by the commands that they print, and answer the same.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import torch

ROOT = Path(__file__).resolve().parents[2]
ENN = Path(os.environ.get("ENN_BIN_DIR", ROOT / "target" / "release")).resolve() / "enn"
SECONDS_MAX = 240
DIFFERENCE_MAX = 1e-4
TOWNS = ["north", "south", "east"]
INPUTS = ["town", "wind", "wet", "height", "ward", "soil", "signs"]

CONFIG = """
name = "towns"
seed = 3
[data]
files = ["towns.csv"]
[data.rows]
features = [{ column = "town", kind = "category" }, "wind", "wet", "height",
  { column = "ward", kind = "index", offset = 10, rows = 6 }, { column = "soil", kind = "category", encoding = "one_hot" },
  { column = "signs", kind = "labels", separator = ";", empty = "missing" }]
targets = ["warm", "cold"]
row_id = "id"
[data.split]
kind = "random"
val = 0.2
test = 0.1
[model]
d_model = 16
heads = 2
preset = "spatiotemporal"
spatial_depth = 1
temporal_depth = 1
spatial_latents = 3
temporal_latents = 3
fuser_latents = 3
fuser_rounds = 1
collector_depth = 1
patch = [1]
linear_branch = true
[train]
epochs = 6
batch = 32
loss = "quantile"
levels = [0.1, 0.5, 0.9]
threads = 1
[cluster]
device = "cpu"
nproc_per_node = 1
"""


def make_rows(rng, count):
    frame = pd.DataFrame({
        "id": np.arange(count),
        "town": rng.choice(TOWNS, count),
        "wind": rng.normal(5, 2, count).round(3),
        "wet": rng.uniform(0, 1, count).round(3),
        "height": rng.normal(1e5, 30, count).round(2),
        "ward": pd.array(rng.integers(10, 15, count), "Int64"),
        "soil": rng.choice(["clay", "sand"], count),
        "signs": [";".join(sign for sign in ("dew", "fog", "ice") if rng.uniform() < 0.5) for _ in range(count)],
    })  # fmt: skip
    town = frame.town.map({"north": -4.0, "south": 6.0, "east": 1.0})
    more = 0.5 * frame.ward.astype(float) + 2 * (frame.soil == "clay") - 3 * frame.signs.str.contains("fog")
    frame["warm"] = (town + more + 0.5 * frame.wind + (frame.height - 1e5) / 30 + rng.normal(0, 0.3, count)).round(3)
    frame["cold"] = (frame.warm - 3 * frame.wet).round(3)
    frame.loc[rng.uniform(size=count) < 0.1, "wind"] = np.nan
    return frame


def enn(*args, cwd):
    libraries = ROOT / "target" / "libtorch" / "lib"
    environment = dict(os.environ, LD_LIBRARY_PATH=str(libraries), ENN_RUNTIMES=sys.prefix)
    done = subprocess.run([ENN, *map(str, args)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, f"enn {args}: {done.stdout}{done.stderr}"
    return done.stdout


def inputs(frame, said):
    """Rows as the file beside an artifact says: columns in its order, categories by their number, labels as 0 and 1, NaN where missing."""
    columns = []
    for column in said["columns"]:
        if label := column.get("label"):
            cells = frame[label["column"]].replace("", np.nan)
            values = cells.map(lambda cell: float(label["name"] in cell.split(";")), na_action="ignore")
        else:
            values = frame[column["name"]]
        if categories := column.get("categories"):
            numbers = {category: float(number) for number, category in enumerate(categories)}
            # Any other number is a category that training has not seen.
            values = values.map(lambda value: numbers.get(str(value), -1.0))
        columns.append(values.to_numpy(np.float64).astype(np.float32))
    return np.stack(columns, 1)


def check(name, found, expected, spread):
    off = np.nanmax(np.abs(found - expected) / spread)
    assert np.array_equal(np.isnan(found), np.isnan(expected)) and off < DIFFERENCE_MAX, f"{name}: off by {off} of the spread"
    print(f"{name}: {len(found)} rows differ from enn predict by {off:.1e} of the spread at most")


def alone(folder, form, told):
    """The artifact and the file beside it answer a table as the run does, quantiles, strangers and rows without anything among them."""
    place = folder / f"alone-{form}"
    place.mkdir()
    for end in ("", ".json"):
        shutil.copy(folder / "out" / f"towns.{form}{end}", place)
    enn("predict", place / f"towns.{form}", "--data", "new.csv", "--out", place / "told.parquet", "--quiet", cwd=folder)
    found = pd.read_parquet(place / "told.parquet").sort_values("row_id")
    assert list(found.columns) == list(told.columns) and found.row_id.tolist() == told.row_id.tolist()
    assert found.failed.fillna("").tolist() == told.failed.fillna("").tolist() and told.failed.notna().sum() == 1
    numbers = [column for column in told.columns if column not in ("row_id", "failed")]
    check(f"{form} by enn predict", found[numbers].to_numpy(), told[numbers].to_numpy(), told[numbers].std().to_numpy())


def packages(name, *options):
    """The environment of some packages, made once; None where they cannot be had."""
    target = ENN.parent.parent
    # The interpreter behind an environment has pip.
    made = subprocess.run([ROOT / "tests/conformance/venv.sh", sys._base_executable, target, name, *options], timeout=SECONDS_MAX)
    return target / f"venv-{name}" if made.returncode == 0 else None


def headers(place):
    """Makes the folders `include` and `lib` of onnxruntime, as its releases have them: its library is in its wheel, the headers in another
    one."""
    (place / "lib").mkdir(parents=True)
    if made := packages("headers", "--no-deps"):
        (place / "include").symlink_to(next(made.rglob("onnxruntime_cxx_api.h")).parent)
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (place / "lib" / name).symlink_to(library)


def programs(folder, form, python, rows, expected, spread):
    """Each program beside an artifact, by the command in it: first with its own rows, then with these. `python` is an environment."""
    place = folder / f"usage-{form}"
    said = json.loads((folder / "out" / f"towns.{form}.json").read_text())
    # A SavedModel is a folder.
    shutil.copytree(folder / "out", place, ignore=lambda _, names: [name for name in names if name.startswith("towns.") and form not in name])
    (place / "rows.json").write_text(json.dumps([[None if np.isnan(x) else float(x) for x in row] for row in rows]))
    ort, built = folder / "onnxruntime", ENN.parent.parent / "usage"
    environment = dict(os.environ, PATH=f"{python}/bin:{os.environ['PATH']}", ORT=str(ort), CARGO_TARGET_DIR=str(built),
                       ORT_DYLIB_PATH=str(ort / "lib" / "libonnxruntime.so"))  # fmt: skip
    environment.pop("LD_LIBRARY_PATH", None)
    for name in said["usage"]:
        end = name.rsplit(".", 1)[1]
        if end == "cpp" and not (ort / "include").exists():
            print(f"skipped: {name}; the headers of onnxruntime could not be had")
            continue
        command = re.search(r"^\W*    ((?:python3|c\+\+|cargo) .*)$", (place / name).read_text(), re.M)[1]
        again = {"py": f"{command} rows.json", "cpp": "./usage rows.json", "rs": f"'{built}/debug/usage' rows.json"}[end]
        for line, count in ((command, 2), (again, len(rows))):
            done = subprocess.run(line, shell=True, cwd=place, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            found = np.array([[float(value) for value in row.split()] for row in done.stdout.splitlines()])
            assert found.shape == (count, expected.shape[1]) and np.isfinite(found).all(), f"{line}\n{done.stdout}"
        check(name, found, expected, spread)


def main():
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        make_rows(rng, 600).to_csv(folder / "towns.csv", index=False)
        (folder / "towns.toml").write_text(CONFIG)
        enn("train", "towns.toml", "--runs-dir", "runs", "--quiet", cwd=folder)
        new = make_rows(rng, 97)
        new.loc[3, "town"] = "nowhere"
        new.loc[[4, 6], ["ward", "signs"]] = [[15, "hail;fog"], [16, "dew"]]
        new.loc[5, INPUTS] = np.nan
        new.drop(columns=["warm", "cold"]).to_csv(folder / "new.csv", index=False)
        enn("predict", "latest", "--runs-dir", "runs", "--data", "new.csv", "--out", "told.parquet", "--quiet", cwd=folder)
        told = pd.read_parquet(folder / "told.parquet").sort_values("row_id")

        report = json.loads(enn("export", "latest", "--runs-dir", "runs", "--to", "onnx,ort,pt2", "--out", "out", "--quantiles", "--json", cwd=folder))
        again = json.loads(enn("export", "latest", "--runs-dir", "runs", "--to", "onnx,pt2", "--out", "again", "--quantiles", "--json", cwd=folder))
        digests = lambda report: {one["format"]: one["sidecar"]["blake3"] for one in report["exported"]}
        assert {**digests(report), **digests(again)} == digests(report), "equal exports have equal bytes"

        said = json.loads((folder / "out" / "towns.onnx.json").read_text())
        assert said["verified"]["level"] == "runtime" and said["verified"]["from"] == "test" and said["levels"] == [0.1, 0.5, 0.9]
        for form in ("onnx", "ort", "pt2"):
            alone(folder, form, told)
        enn("predict", "latest", "--runs-dir", "runs", "--engine", "ort", "--data", "new.csv", "--out", "engine.parquet", "--quiet", cwd=folder)
        # That a row without any input has no answer is told beside the numbers.
        answered = told.failed.isna().to_numpy()
        x, told = inputs(new, said)[answered], told[answered]
        spread = np.array([spread for _, spread in said["scaler"][1]])
        expected = told[["warm", "cold"]].to_numpy()
        cells = lambda level: [cell if level == 0.5 else f"{cell}@{level}" for cell in ("warm", "cold")]
        quantiles = np.stack([told[cells(level)].to_numpy() for level in said["levels"]], 1)
        for form in ("onnx", "ort"):
            session = onnxruntime.InferenceSession(folder / "out" / f"towns.{form}")
            y, q = session.run(["y", "quantiles"], {"x": x})
            check(form, y.reshape(expected.shape), expected, spread)
            check(f"{form} quantiles", q.reshape(quantiles.shape), quantiles, spread)
        module = torch.export.load(folder / "out" / "towns.pt2").module()
        told = module(torch.from_numpy(x))
        check("pt2 quantiles", told["quantiles"].detach().numpy().reshape(quantiles.shape), quantiles, spread)
        check("pt2", told["y"].detach().numpy().reshape(expected.shape), expected, spread)
        one = module(torch.from_numpy(x[:1]))["y"].detach().numpy().reshape(1, -1)
        check("pt2, one row", one, expected[:1], spread)
        headers(folder / "onnxruntime")
        for form in ("onnx", "ort", "pt2"):
            programs(folder, form, sys.prefix, x, expected, spread)
        if tensorflow := packages("tf"):
            enn("export", "latest", "--runs-dir", "runs", "--to", "litert,tensorflow", "--out", "out", "--unverified", cwd=folder)
            for form in ("tflite", "savedmodel"):
                programs(folder, form, tensorflow, x, expected, spread)
        else:
            print("skipped: the programs of LiteRT and TensorFlow; their packages could not be had")


if __name__ == "__main__":
    main()
