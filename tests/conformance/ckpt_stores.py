"""Checkpoints in S3, GCS and Azure: up and back, and an upload that is killed within a large file goes on behind the parts that are there.

S3 is moto's server. GCS's XML protocol is S3's, so the same server plays it behind a proxy that signs as S3 does (the emulators of PyPI
only speak GCS's JSON protocol). Azure is Azurite of npm, where $ENN_AZURITE names its `azurite-blob`, else the small store of `_azure.py`;
which, is said."""

import base64
import datetime
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import ckpt_store
from _azure import Blobs
from _ckpt import BIN
from _proxy import Proxy

PART = 8 << 20
WAIT_SECONDS_MAX = 120
# A request gives up after 30.
REQUEST_SECONDS_MAX = 20


def azurite(program, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([program, "--blobPort", str(port), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck",
                                "--disableTelemetry"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # The key that every installation of Azurite has.
    key = base64.b64decode("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==")
    end = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        text = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:2021-08-06\n/devstoreaccount1/devstoreaccount1/shelf\nrestype:container"
        sign = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
        headers = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Content-Length": "0", "Authorization": f"SharedKey devstoreaccount1:{sign}"}
        ask = urllib.request.Request(f"http://127.0.0.1:{port}/devstoreaccount1/shelf?restype=container", method="PUT", headers=headers)
        try:
            urllib.request.urlopen(ask, timeout=10).read()
            return process, port
        except OSError:
            assert time.monotonic() < end and process.poll() is None, "Azurite does not start"
            time.sleep(0.3)


def check(name, place, proxy, settings, folder):
    environment = {**os.environ, **settings}

    def start(*args):
        return subprocess.Popen([BIN / "enn", "ckpt", *map(str, args), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=environment)

    def enn(*args):
        process = start(*args)
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, f"{args}: {process.returncode}\n{out}{error}"
        return json.loads(out)

    large, small = folder / "large", folder / "small"
    enn("push", small, f"{place}/small")
    began = time.monotonic()
    enn("pull", f"{place}/small", folder / f"{name}-small")
    assert time.monotonic() - began < REQUEST_SECONDS_MAX, "a request waits for a connection that nobody serves any more"
    assert enn("verify", folder / f"{name}-small", "--deep")["ok"] and not proxy.parts, "small files go up in one request"
    # The fifth part is held back: the first four are noted by then.
    proxy.hold_at = 5
    process = start("push", large, f"{place}/large")
    assert proxy.held.wait(WAIT_SECONDS_MAX)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    proxy.hold_at, before = None, len(proxy.parts)
    enn("push", large, f"{place}/large")
    # By part: one that was not answered is sent again.
    sent = dict(proxy.parts[before:])
    size = max(path.stat().st_size for path in large.iterdir())
    assert sum(sent.values()) == size - 4 * PART, (sent, size)
    enn("pull", f"{place}/large", folder / f"{name}-large")
    assert enn("diff", large, folder / f"{name}-large")["same"]
    print(f"{name}: up and back; killed within a file of {size} bytes, the second attempt sent {len(sent)} of {-(-size // PART)} parts")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for form, state in [("large", {"w": torch.randn(11, 1 << 20)}), ("small", {"w": torch.randn(9)})]:
            dcp.save(state, checkpoint_id=folder / f"{form}-plain", no_dist=True)
            subprocess.run([BIN / "enn", "ckpt", "convert", folder / f"{form}-plain", folder / form, "--to", "enn"], check=True, capture_output=True)
        process, port = ckpt_store.server()
        try:
            proxy = Proxy(port)
            check("s3", "s3://shelf/s3", proxy, {"AWS_ENDPOINT": proxy.address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
                                                 "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}, folder)
            proxy = Proxy(port, bare=True)
            account = {"gcs_base_url": proxy.address, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
            (folder / "account.json").write_text(json.dumps(account))
            check("gcs", "gs://shelf/gs", proxy, {"GOOGLE_SERVICE_ACCOUNT": str(folder / "account.json"), "GOOGLE_ALLOW_HTTP": "true"}, folder)
        finally:
            process.terminate()
            process.wait()
        program = os.environ.get("ENN_AZURITE")
        process, port = azurite(program, folder) if program else (None, Blobs().port)
        try:
            proxy = Proxy(port)
            check("azure by Azurite" if program else "azure", "az://shelf/az", proxy,
                  {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": proxy.address, "AZURE_ALLOW_HTTP": "true"}, folder)
        finally:
            if process:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
