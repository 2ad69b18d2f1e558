"""Prometheus' own OpenMetrics parser reads what `enn status --openmetrics` prints and what `--metrics-addr` serves."""

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families

ENN = Path(os.environ["ENN_BIN_DIR"]) / "enn"
CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
HOSTILE = 'n"1\\\n'


def samples(text):
    """Name and labels → value; fails when the text breaks a rule of the format."""
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), names
    assert all(family.documentation for family in families), "every family says what it is"
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def journal():
    """Two nodes, one of them with a hostile name; a failure, a restart, a wait."""
    nodes = [{"host": HOSTILE, "workers": 1}, {"host": "n2", "workers": 1}]
    yield {"event": "run_started", "run": HOSTILE, "mode": "run", "dir": "/r", "host": HOSTILE, "nproc": 1, "argv": ["enn"]}
    yield {"event": "waiting", "reason": "1 of 2 nodes joined"}
    yield {"event": "node_joined", "host": HOSTILE, "workers": 1}
    for attempt in range(2):
        yield {"event": "round_formed", "round": attempt, "restart": attempt, "master": "n1:1", "nodes": nodes}
        yield {"event": "round_started", "round": attempt, "world_size": 2, "attempt": attempt, "resume_step": None}
        yield {"event": "worker_started", "round": attempt, "local_rank": 0, "rank": 0, "pid": 1, "host": HOSTILE}
        yield {"event": "stepped", "epoch": 1, "step": 7, "loss": None, "lr": 1e-3, "grad_norm": 1.0, "samples_per_s": 5.5}
        yield {"event": "worker_exited", "round": attempt, "rank": 0, "pid": 1, "code": 1, "signal": None, "seconds_to_notice": 0}
        yield {"event": "round_failed", "round": attempt, "cause": "x", "restarting": attempt == 0, "restarts_left": 1 - attempt}
    yield {"event": "warned", "message": "odd"}
    yield {"event": "run_ended", "code": 1, "seconds": 3.0, "restarts": 1, "rounds": 2}


def printed():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "launch.json").write_text("{}")
        lines = [json.dumps({"time": 1_790_000_000 + index, **event}) for index, event in enumerate(journal())]
        for count in range(len(lines) + 1):
            Path(folder, "events.jsonl").write_text("".join(line + "\n" for line in lines[:count]))
            text = subprocess.run([ENN, "status", folder, "--openmetrics"], check=True, capture_output=True, text=True).stdout
            found = samples(text)
        assert found["enn_run_info", ("host", HOSTILE), ("mode", "run"), ("run", HOSTILE)] == 1, found
        assert found["enn_run_state", ("enn_run_state", "failed")] == 1
        assert sum(value for key, value in found.items() if key[0] == "enn_run_state") == 1
        assert found["enn_restarts_total",] == 1 and found["enn_failed_rounds_total",] == 2
        assert found["enn_nodes", ("state", "out")] == 2
        assert found["enn_worker_up", ("host", HOSTILE), ("rank", "0")] == 0
        assert found["enn_exit_code",] == 1 and found["enn_loss",] != found["enn_loss",], "a loss that is none is NaN"
        print(f"{len(lines) + 1} pages, {len(found)} samples in the last")


def served():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/metrics"
    with tempfile.TemporaryDirectory() as runs:
        command = [ENN, "train", "examples/weather/weather.toml", "--nproc-per-node", "2", "--runs-dir", runs, "--quiet",
                   "--set", "train.epochs=20", "--metrics-addr", str(port)]
        steps = []
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as enn:
            while enn.poll() is None:
                try:
                    with urllib.request.urlopen(url, timeout=10) as reply:
                        assert reply.headers["Content-Type"] == CONTENT_TYPE, reply.headers
                        found = samples(reply.read().decode())
                except (urllib.error.URLError, ConnectionError):
                    continue
                steps.append(found.get(("enn_step",), 0))
                time.sleep(0.02)
            assert enn.returncode == 0, enn.stderr.read()
    assert steps == sorted(steps) and steps[-1] > 0, steps
    print(f"{len(steps)} scrapes of a run, up to step {steps[-1]:.0f}")


if __name__ == "__main__":
    printed()
    served()
