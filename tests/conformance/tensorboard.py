"""TensorBoard's own reader reads the event files of a run, and finds the numbers of its journal, also after a resume."""

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

# This file's own folder is on the path, and its name is the package's.
import sys

sys.path.pop(0)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

ENN = Path(os.environ["ENN_BIN_DIR"]) / "enn"


RUNNING_SECONDS_MAX = 120


def command(*more):
    return [ENN, "train", *more, "--nproc-per-node", "1", "--quiet", "--set", "train.epochs=8", "--set", "train.checkpoint_every=1"]


def stopped_after(epochs, runs):
    """A run that was asked to stop when it had done so many epochs."""
    with subprocess.Popen(command("examples/weather/weather.toml", "--runs-dir", runs)) as enn:
        deadline = time.monotonic() + RUNNING_SECONDS_MAX
        while time.monotonic() < deadline and enn.poll() is None:
            journals = list(Path(runs).glob("*/events.jsonl"))
            if journals and journals[0].read_text().count('"epoch_ended"') >= epochs:
                enn.send_signal(signal.SIGINT)
                break
            time.sleep(0.02)
        assert enn.wait(RUNNING_SECONDS_MAX) == 130, enn.returncode
    return journals[0].parent


def compare(run):
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    epochs = [event for event in events if event["event"] == "epoch_ended"]
    trained = [event for event in events if event["event"] == "trained"][-1]
    read = EventAccumulator(str(run / "tensorboard"))
    read.Reload()
    tags = set(read.Tags()["scalars"])
    assert {"loss/train", "mae/val", "optimizer/learning_rate", "mae/test_best"} <= tags, tags
    for tag, of in [("loss/train", lambda e: e["train_loss"]), ("mae/val", lambda e: e["val"]["mae"])]:
        found = [(scalar.step, scalar.value) for scalar in read.Scalars(tag)]
        expected = [(epoch["step"], of(epoch)) for epoch in epochs]
        assert [step for step, _ in found] == [step for step, _ in expected], (tag, found, expected)
        assert all(abs(a - b) <= 1e-6 * abs(b) for (_, a), (_, b) in zip(found, expected)), (tag, found, expected)
    best = read.Scalars("mae/test_best")[-1].value
    assert abs(best - trained["split"]["test"]["mae"]) <= 1e-6 * best
    return len(epochs)


def main():
    with tempfile.TemporaryDirectory() as runs:
        run = stopped_after(2, runs)
        subprocess.run(command("--resume", str(run)), check=True)
        epochs = compare(run)
        files = len(list((run / "tensorboard").iterdir()))
        assert epochs == 8 and files == 2, (epochs, files)
        print(f"{epochs} epochs in {files} files")


if __name__ == "__main__":
    main()
