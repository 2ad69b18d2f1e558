"""Runs that are kept in S3, GCS and Azure (which play them: see ckpt_stores.py): the machine is killed while a file of a checkpoint is on its way, one that has nothing goes on
from what is in the store, and others predict, list and verify by the address. Then the store says no to the end of a run."""

import json
import math
import os
import signal
import subprocess
import tempfile
import time
import urllib.parse
from pathlib import Path

import ckpt_store
from _azure import Blobs
from _ckpt import BIN
from _proxy import Proxy

WAIT_SECONDS_MAX = 240
EPOCHS = 6
SECRET = ckpt_store.SECRET
CONFIGURATION = """
name = "kept"
seed = 3
[data]
files = ["kept.csv"]
[data.rows]
features = ["a", "b"]
targets = ["y"]
[model]
d_model = 16
heads = 2
preset = "spatial"
spatial_depth = 1
spatial_latents = 2
fuser_latents = 4
fuser_rounds = 1
collector_depth = 1
patch = [1]
[train]
epochs = 6
batch = 64
threads = 1
checkpoint_every = 1
checkpoint_keep = 1
patience = 0
[cluster]
device = "cpu"
nproc_per_node = 1
"""


class Guard(Proxy):
    """Notes which checkpoints have their manifest. It leaves the next file of one without an answer, or refuses all, when it is told so."""

    def __init__(self, port, bare=False):
        super().__init__(port, bare)
        self.committed, self.holds, self.closed, self.read = [], False, False, 0

    def answer(self, method, path, headers, body):
        # GCS is asked with the slashes of a name in disguise.
        name = urllib.parse.unquote(path.split("?")[0])
        if method in ("PUT", "POST") and self.closed and "/step-" in name:
            return 403, {"Content-Type": "application/xml"}, b"<Error><Code>AccessDenied</Code><Message>no more</Message></Error>"
        if method == "PUT" and self.holds and name.endswith(".distcp"):
            self.held.set()
            return None
        answered = super().answer(method, path, headers, body)
        if method == "GET" and name.endswith(".distcp") and answered:
            self.read += len(answered[2])
        if method == "PUT" and name.endswith("/manifest.json") and answered and answered[0] in (200, 201):
            self.committed.append(name)
        return answered


def check(name, runs, proxy, settings, folder):
    def start(machine, *args):
        home = folder / f"{name}-{machine}"
        home.mkdir(exist_ok=True)
        environment = {**os.environ, **settings, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        environment.pop("ENN_RUNS", None)
        return subprocess.Popen([BIN.absolute() / "enn", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=environment, cwd=folder)

    def ended(process, code=0):
        out, error = process.communicate(timeout=WAIT_SECONDS_MAX)
        assert process.returncode == code, f"{process.args}: {process.returncode}\n{out}{error}"
        assert SECRET not in out + error
        return out, error

    def enn(machine, *args, code=0):
        return ended(start(machine, *args), code)

    def train(machine, *more):
        return start(machine, "train", "kept.toml", "--quiet", "--runs-dir", runs, *more)

    # A file of the second checkpoint or a later one is not answered; then the machine dies.
    process = train("first")
    end = time.monotonic() + WAIT_SECONDS_MAX
    while not proxy.committed:
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.01)
    proxy.holds = True
    assert proxy.held.wait(WAIT_SECONDS_MAX)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    proxy.holds = False
    listed = json.loads(enn("third", "ckpt", "ls", "latest", "--runs-dir", runs, "--json")[0])
    saved = max(one["step"] for one in listed if one["complete"])
    run = listed[-1]["path"].rsplit("/", 2)[0]

    enn("second", "train", "kept.toml", "--runs-dir", runs, "--resume", "auto", "--quiet")
    metrics = json.loads(enn("third", "metrics", run, "--json")[0])
    assert metrics["epoch"] == EPOCHS and math.isfinite(metrics["split"]["test"]["mae"]), metrics
    listed = json.loads(enn("third", "ckpt", "ls", run, "--json")[0])
    assert all(one["complete"] for one in listed) and listed[-1]["step"] > saved and len(listed) <= 3, listed
    assert json.loads(enn("third", "ckpt", "verify", run, "--deep", "--json")[0])["ok"]
    before = proxy.read
    shown = json.loads(enn("fifth", "ckpt", "show", run, "--json")[0])
    assert shown["path"] == listed[-1]["path"] and shown["tensors"], shown
    assert json.loads(enn("fifth", "ckpt", "diff", run, listed[-1]["path"], "--json")[0])["same"]
    assert proxy.read == before, "what is the same by its checksums is not read"
    for other in listed[:-1]:
        before = proxy.read
        enn("fifth", "ckpt", "diff", run, other["path"], code=5)
        # Of both each place once, at most.
        assert before < proxy.read <= before + other["bytes"] + listed[-1]["bytes"], (before, proxy.read, listed)
    enn("third", "predict", run, "--data", "kept.csv", "--out", f"{name}.parquet", "--quiet")
    assert (folder / f"{name}.parquet").stat().st_size > 0
    journal = next((folder / f"{name}-second/cache/enn/runs").glob("*/kept-*/events.jsonl")).read_text()
    rounds = [event for event in map(json.loads, journal.splitlines()) if event["event"] == "round_started"]
    assert rounds[-1]["resume_step"] == saved, (rounds, saved)
    print(f"{name}: killed within an upload, gone on elsewhere from step {saved}, predicted, listed and verified by the address")

    # The store says no from the first checkpoint on.
    proxy.closed = True
    process = train("fourth", "--set", "train.epochs=2")
    _, told = ended(process, 4)
    assert "the end of the run is not at" in told and runs in told and "hint: " in told, told
    proxy.closed = False
    copy = next((folder / f"{name}-fourth/cache/enn/runs").glob("*/kept-*"))
    enn("fourth", "train", "--resume", f"{runs}/{copy.name}", "--quiet")
    assert json.loads(enn("third", "ckpt", "ls", f"{runs}/{copy.name}", "--json")[0])[-1]["complete"]
    if name == "s3":
        _, told = enn("fourth", "train", "kept.toml", "--runs-dir", "s3://no-such-bucket/runs", "--quiet", code=5)
        assert "s3://no-such-bucket/runs" in told, told
    print(f"{name}: a run whose end does not come to the store has failed, and is brought there later")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kept.toml").write_text(CONFIGURATION)
        rows = ((row, math.sin(row), math.cos(row * 1.3)) for row in range(400))
        (folder / "kept.csv").write_text("a,b,y\n" + "".join(f"{a:.4f},{b:.4f},{a * b:.4f}\n" for _, a, b in rows))
        process, port = ckpt_store.server()
        try:
            proxy = Guard(port)
            check("s3", "s3://shelf/runs", proxy, {"AWS_ENDPOINT": proxy.address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
                                                   "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET}, folder)
            proxy = Guard(port, bare=True)
            account = {"gcs_base_url": proxy.address, "disable_oauth": True, "client_email": "", "private_key": SECRET, "private_key_id": ""}
            (folder / "account.json").write_text(json.dumps(account))
            check("gcs", "gs://shelf/gs", proxy, {"GOOGLE_SERVICE_ACCOUNT": str(folder / "account.json"), "GOOGLE_ALLOW_HTTP": "true"}, folder)
        finally:
            process.terminate()
            process.wait()
        proxy = Guard(Blobs().port)
        check("azure", "az://shelf/runs", proxy, {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": proxy.address,
                                                  "AZURE_ALLOW_HTTP": "true"}, folder)


if __name__ == "__main__":
    main()
