"""Prints launcher/export/FORMATS.md's tables: each run in each format and precision, how large it is, how long writing and the check took, and how
far its answers lie from the model's.

    _formats.py [--formats onnx,ort,…] [--precisions fp32,fp16,bf16] [--runs-dir DIR] RUN…

What cannot be made or run here is a row with the reason. Runtimes are looked for where `enn export` looks for them.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENN = pathlib.Path(os.environ.get("ENN_BIN_DIR", ROOT / "target" / "release")) / "enn"
FORMATS = "onnx,ort,pt2,aoti,executorch,coreml,litert,tensorflow"
HEAD = "| format | precision | bytes | written in | largest | mean | limit | check took | by |\n|---|---|--:|--:|--:|--:|--:|--:|---|"
SECONDS_MAX = 3600


def exported(run: str, precision: str, wanted: argparse.Namespace) -> list[dict]:
    """What `enn export --json` says of each format; quantiles where the run has them."""
    with tempfile.TemporaryDirectory() as out:
        command = [str(ENN), "export", run, "--to", wanted.formats, "--precision", precision, "--out", out, "--json", "--quantiles"]
        command += ["--batch", "1:64:300"] + (["--runs-dir", wanted.runs_dir] if wanted.runs_dir else [])
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    if not done.stdout.startswith("{"):
        sys.exit(f"error: {' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)["exported"]


def row(one: dict, precision: str) -> str:
    if "error" in one:
        return f"| {one['format']} | {precision} | | | | | | | {one['error'].splitlines()[0]} |"
    said = one["sidecar"]
    check, notes = said["verified"], said.get("notes", {})
    by, figures = check["runtime"], [f"{check[name]:.1e}" for name in ("largest", "mean")]
    if check["level"] == "structure":
        # Nothing ran: what the graph's interpreter answered is said beside it, where the graph is another one.
        figures = [f"{float(notes[f'reference_{name}']):.1e}" if f"reference_{name}" in notes else "" for name in ("largest", "mean")]
        by = "not run: read again" + ("; differences are those of enn's interpreter" if figures[0] else "")
    cells = [one["format"], precision, f"{said['bytes']:,}", f"{one['seconds']:.2f} s", *figures, f"{check['tolerance']:.0e}"]
    return "| " + " | ".join([*cells, f"{check['seconds']:.2f} s", by]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--precisions", default="fp32,fp16,bf16")
    parser.add_argument("--runs-dir")
    wanted = parser.parse_args()
    for run in wanted.runs:
        print(f"\n### {run}\n\n{HEAD}")
        for precision in wanted.precisions.split(","):
            for one in exported(run, precision, wanted):
                print(row(one, precision), flush=True)


if __name__ == "__main__":
    main()
