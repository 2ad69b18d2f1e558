"""MLflow reads the file store that `enn mlflow` writes: experiment, parameters, metrics of every epoch, tags and artifacts. A run that is
exported twice is there once, and what was added in MLflow stays.

MLflow has an environment of its own: this one makes target/venv-mlflow, once, and goes on there.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _environment import go_on_in

BIN = Path(os.environ.get("ENN_BIN_DIR", "target/release"))
ENN = BIN / "enn"
SECONDS_MAX = 300


def enn(*words):
    return subprocess.run([ENN, *words], check=True, timeout=SECONDS_MAX, stdout=subprocess.PIPE, text=True).stdout


def same(found, expected):
    return found == expected or (math.isnan(found) and (expected is None or math.isnan(expected)))


def compare(client, stored, run):
    """The run in MLflow has what the journal and the configuration of the run have."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    epochs = [event for event in events if event["event"] == "epoch_ended"]
    trained = [event for event in events if event["event"] == "trained"][-1]
    config = json.loads((run / "run.json").read_text())
    found = client.get_run(stored["run_id"])
    assert found.info.status == "FINISHED" and found.info.run_name == run.name, found.info
    assert found.info.start_time == round(1000 * events[0]["time"]), (found.info.start_time, events[0])
    assert client.get_experiment(found.info.experiment_id).name == config["name"]
    assert float(found.data.params["train.lr"]) == config["train"]["lr"], found.data.params
    assert found.data.params["data.files"] == ", ".join(config["data"]["files"])
    for name, of in [("loss/train", lambda epoch: epoch["train_loss"]), ("mae/val", lambda epoch: epoch["val"]["mae"])]:
        history = [(one.step, one.value, one.timestamp) for one in client.get_metric_history(stored["run_id"], name)]
        expected = [(epoch["step"], of(epoch), round(1000 * epoch["time"])) for epoch in epochs]
        assert len(history) == len(expected) and all(
            a[0] == b[0] and same(a[1], b[1]) and a[2] == b[2] for a, b in zip(sorted(history), expected)
        ), (name, history, expected)
    assert found.data.metrics["mae/test_best"] == trained["split"]["test"]["mae"]
    assert "mae/test_baseline_ridge" in found.data.metrics
    assert found.data.tags["mlflow.source.name"].endswith("--quiet"), found.data.tags
    assert found.data.tags["enn.state"] == "finished" and found.data.tags["enn.host"]
    artifacts = sorted(one.path for one in client.list_artifacts(stored["run_id"]))
    assert artifacts == ["report.html", "run.json"], artifacts
    with tempfile.TemporaryDirectory() as place:
        report = client.download_artifacts(stored["run_id"], "report.html", place)
        assert Path(report).read_bytes() == (run / "report.html").read_bytes()
    return len(epochs)


def main():
    # This file has the name of the package.
    sys.path.pop(0)
    import mlflow

    with tempfile.TemporaryDirectory(prefix="enn mlflow ") as place:
        runs, store = Path(place) / "runs", Path(place) / "a store"
        options = ["--runs-dir", runs]
        words = ["--nproc-per-node", "1", "--set", "train.epochs=2", "--quiet"]
        enn("train", "examples/weather/weather.toml", *options, "--set", "train.lr=0.002", *words)
        enn("train", "examples/weather/weather.toml", *options, *words)
        stored = json.loads(enn("mlflow", *options, "--to", store, "--json"))["runs"]
        assert len(stored) == 2 and all(one["new"] for one in stored), stored
        mlflow.set_tracking_uri(store.as_uri())
        client = mlflow.MlflowClient()
        epochs = [compare(client, one, runs / one["run"]) for one in stored]
        found = mlflow.search_runs(
            experiment_names=["weather"], filter_string="params.`train.lr` = '0.002'", output_format="list"
        )
        assert len(found) == 1, found
        client.set_tag(stored[0]["run_id"], "mlflow.note.content", "the best one")
        again = json.loads(enn("mlflow", *options, "--to", store, "--artifacts", "link", "--json"))["runs"]
        assert [one["run_id"] for one in again] == [one["run_id"] for one in stored] and not any(one["new"] for one in again)
        assert len(mlflow.search_runs(experiment_names=["weather"], output_format="list")) == 2
        assert client.get_run(stored[0]["run_id"]).data.tags["mlflow.note.content"] == "the best one"
        [compare(client, one, runs / one["run"]) for one in again]
        client.delete_run(stored[0]["run_id"])
        refused = subprocess.run([ENN, "mlflow", stored[0]["run"], *options, "--to", store], stderr=subprocess.PIPE, text=True)
        assert refused.returncode == 2 and "mlflow runs restore" in refused.stderr, refused
    print(f"MLflow {mlflow.__version__} read {len(stored)} runs of {epochs} epochs")


if __name__ == "__main__":
    if sys.argv[1:] == ["here"]:
        main()
    else:
        # MLflow 3 refuses a file store unless it is asked for one.
        go_on_in("mlflow", __file__, SECONDS_MAX, MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true")
