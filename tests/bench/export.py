"""export_onnx, export_pt2: seconds to write a trained model of about seven million weights; below half a second. ort_vs_native_latency:
milliseconds of 256 rows in onnxruntime, the exported ONNX file, beside those that `enn predict` takes for as many, one thread each; no slower.

    export.py [--rounds 3]

Needs ENN_PYTHON, a Python with numpy and onnxruntime.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np

import _record as record
import _rows as rows
import _steps as steps

SECONDS_MAX = 0.5
ROWS = 256
# Calls of the file in onnxruntime, and rows of the prediction beside it.
CALLS, PREDICTED = 40, 12_288
SHAPE = rows.Shape(4_096, 64, (8, 24), 64, {})

LATENCY = """
import json, statistics, sys, time
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options)
x = np.load(sys.argv[2])
times = []
for call in range(int(sys.argv[4]) + 5):
    part = x[call % 8 * int(sys.argv[3]):][: int(sys.argv[3])]
    begun = time.perf_counter()
    session.run(None, {"x": part})
    times.append(1e3 * (time.perf_counter() - begun))
print(json.dumps(statistics.median(times[5:])))
"""


def exported(folder: pathlib.Path) -> dict[str, dict]:
    """What `enn export --json` says of each format."""
    python = pathlib.Path(steps.python())
    environment = dict(steps.library_environment("cpu"), ENN_RUNTIMES=str(python.parent.parent))
    command = [str(steps.binary("enn", "cpu")), "export", "latest", "--runs-dir", str(folder / "runs")]
    command += ["--to", "onnx,pt2", "--out", str(folder / "out"), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"enn export ended with {done.returncode}: {done.stdout}{done.stderr}")
    return {one["format"]: one for one in json.loads(done.stdout)["exported"]}


def in_onnxruntime(folder: pathlib.Path) -> float:
    """Milliseconds of a call."""
    command = [steps.python(), "-c", LATENCY, str(folder / "out" / "export.onnx"), str(folder / "x.npy"), str(ROWS), str(CALLS)]
    environment = dict(record.peer_environment(), OMP_NUM_THREADS="1")
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def native(folder: pathlib.Path, data: pathlib.Path) -> float:
    """Milliseconds of as many rows, from the first notice to the last."""
    [run] = [path.parent for path in (folder / "runs").glob("*/run.json")]
    arguments = ["predict", str(run), "--data", str(data), "--out", str(folder / "told.parquet"), "--replace"]
    rows.enn([*arguments, "--set", "train.threads=1"], "cpu")
    noticed = [event for event in rows.events(run / "predictions") if event["event"] == "predicted"]
    span, done = noticed[-1]["time"] - noticed[0]["time"], noticed[-1]["rows"] - noticed[0]["rows"]
    return 1e3 * span / done * ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    model = {**rows.model(256, 24, [1, 4]), "heads": 8, "spatial_depth": 2, "temporal_depth": 2, "dropout": 0.0}
    rows.SHAPES["export"] = shape = rows.Shape(SHAPE.rows, SHAPE.features, SHAPE.grid, SHAPE.batch, model)
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        rows.make_data(folder, shape)
        config = rows.configure(folder, "export", 1, shape.batch, "cpu")
        rows.enn(["train", str(config), "--runs-dir", str(folder / "runs")], "cpu")
        built = next(e for e in rows.events(folder / "runs") if e["event"] == "model_built")
        data = folder / "new" / "x.npy"
        data.parent.mkdir()
        np.save(data, np.resize(np.load(folder / "x.npy"), (PREDICTED, shape.features)))
        seconds, latency = {"onnx": [], "pt2": []}, {"ours": [], "peer": []}
        for _ in range(wanted.rounds):
            found = exported(folder)
            for form, one in found.items():
                seconds[form].append(one["seconds"])
            latency["ours"].append(in_onnxruntime(folder))
            latency["peer"].append(native(folder, data))
        more = {"parameters": built["parameters"], "bytes": {form: one["sidecar"]["bytes"] for form, one in found.items()}}
        more["largest_difference"] = {form: one["sidecar"]["verified"]["largest"] for form, one in found.items()}
    passed = [record.record(f"export_{form}", "s", "lower", times, [SECONDS_MAX], "limit", 1.0, more) for form, times in seconds.items()]
    passed.append(record.record("ort_vs_native_latency", "ms", "lower", latency["ours"], latency["peer"], "enn predict", 1.0, more))
    print(more, {form: statistics.median(times) for form, times in seconds.items()}, latency, os.cpu_count(), "cores")
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
