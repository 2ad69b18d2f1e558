"""aoti_ROWS_vs_{eager,compile}: milliseconds of a call with so many rows on a GPU, the package that `enn export --to aoti --device cuda`
wrote, against the same model in PyTorch, eager and torch.compile; from columns on the GPU to answers there.

    gpu_export.py [--rows 1,1024] [--rounds 5]

Needs ENN_PYTHON, a Python with torch 2.11 for CUDA, numpy and a C++ compiler.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import _record as record
import _rows as rows
import _steps as steps

SHAPE = rows.Shape(4_096, 64, (8, 24), 64, {**rows.model(256, 24, [1, 4]), "heads": 8, "spatial_depth": 2, "temporal_depth": 2, "dropout": 0.0})


def exported(folder: pathlib.Path) -> dict:
    """What `enn export --json` says."""
    environment = dict(steps.library_environment("cuda"))
    environment.setdefault("ENN_RUNTIMES", str(pathlib.Path(steps.python()).parent.parent))
    command = [str(steps.binary("enn", "cuda")), "export", "latest", "--runs-dir", str(folder / "runs"), "--batch", "1:64:4096"]
    command += ["--to", "aoti", "--device", "cuda", "--out", str(folder / "out"), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"enn export ended with {done.returncode}: {done.stdout}{done.stderr}")
    [one] = json.loads(done.stdout)["exported"]
    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,1024")
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    rows.SHAPES["export"] = SHAPE
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        rows.make_data(folder, SHAPE)
        config = rows.configure(folder, "export", 1, SHAPE.batch, "cuda")
        rows.enn(["train", str(config), "--runs-dir", str(folder / "runs")], "cuda")
        one = exported(folder)
        options = {"device": "cuda", "threads": 1, "package": str(folder / "out" / one["sidecar"]["artifact"])}
        options |= {"rows": [int(n) for n in wanted.rows.split(",")], "rounds": wanted.rounds}
        found = rows.peer("latency", config, **options)
    said = one["sidecar"]
    more = {"bytes": said["bytes"], "written_s": one["seconds"], "largest_difference": said["verified"]["largest"], "parameters": found["parameters"]}
    passed = []
    for number, times in found["times"].items():
        for peer in ("eager", "compile"):
            passed.append(record.record(f"aoti_{number}_vs_{peer}", "ms", "lower", times["aoti"], times[peer], f"PyTorch {peer}", 1.0, more))
    print(json.dumps(found | more), os.cpu_count(), "cores")
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
