"""step_cpu_vs_pytorch_eager: one optimizer step of the same model, data, batch and threads, ours against PyTorch eager.

Needs ENN_PYTHON, a Python with torch 2.11 and numpy.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import _record as record

EPOCHS, STEPS, ROUNDS = 40, 200, 3
# Smallest ratio of PyTorch's time to ours that passes: at most 0.8 of it.
LIMIT = 1 / 0.8


def ours(config: pathlib.Path, runs: pathlib.Path) -> tuple[float, int, pathlib.Path]:
    """Median over epochs of the mean step time, milliseconds; parameters; the staged directory."""
    command = [record.binary("enn"), "train", str(config), "--nproc-per-node", "1", "--runs-dir", str(runs), "--quiet"]
    command += ["--set", f"train.epochs={EPOCHS}", "--set", "train.checkpoint_every=1000", "--set", f"train.threads={os.cpu_count()}"]
    subprocess.run(command, env=record.environment(), check=True, stdout=subprocess.DEVNULL)
    journal = max(runs.glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime)
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    steps = sorted(e["step_ms"]["total"] for e in events if e["event"] == "epoch_ended")
    parameters = next(e["parameters"] for e in events if e["event"] == "model_built")
    staged = next(e["dir"] for e in events if e["event"] == "staged")
    return steps[len(steps) // 2], parameters, pathlib.Path(staged)


def peer(python: str, config: pathlib.Path, staged: pathlib.Path) -> tuple[float, int]:
    """Median step, milliseconds; parameters."""
    script = pathlib.Path(__file__).with_name("_eager_step.py")
    command = [python, str(script), str(config), str(staged), str(os.cpu_count()), str(STEPS)]
    out = json.loads(subprocess.run(command, env=record.peer_environment(), capture_output=True, text=True, check=True).stdout)
    return out["ms"], out["parameters"]


def main() -> None:
    """Alternates, and refuses to compare models of different size."""
    python = os.environ.get("ENN_PYTHON") or sys.exit("set ENN_PYTHON to a Python with torch 2.11 (make conformance builds one)")
    config = record.ROOT / "examples" / "weather" / "weather.toml"
    with tempfile.TemporaryDirectory() as folder:
        runs = pathlib.Path(folder)
        a, b = [], []
        for _ in range(ROUNDS):
            milliseconds, parameters, staged = ours(config, runs)
            a.append(milliseconds)
            eager, eager_parameters = peer(python, config, staged)
            b.append(eager)
            if parameters != eager_parameters:
                sys.exit(f"not the same model: {parameters} parameters here, {eager_parameters} in the peer")
    sys.exit(0 if record.record("step_cpu_vs_pytorch_eager", "ms", "lower", a, b, "PyTorch eager, fused AdamW", LIMIT) else 1)


if __name__ == "__main__":
    main()
