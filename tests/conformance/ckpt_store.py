"""Checkpoints go to a local S3 server and come back: multi-part upload, interruption, damage, credentials that stay unseen."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from _ckpt import BIN, fixture

SECRET = "this-is-the-secret-key"
STARTED_SECONDS_MAX = 60


def server():
    """A moto server of the Python that has it; this one, or the system's."""
    python = next((python for python in [sys.executable, "python3"]
                   if not subprocess.run([python, "-c", "import moto.server"], capture_output=True).returncode), None)
    assert python, "no Python here has moto; it is in requirements.txt"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([python, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + STARTED_SECONDS_MAX
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/shelf", method="PUT"), timeout=60).read()
            return process, port
        except OSError:
            assert time.monotonic() < end and process.poll() is None, "the server does not start"
            time.sleep(0.2)


def main():
    process, port = server()
    environment = {**os.environ, "AWS_ENDPOINT": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
                   "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET}

    def enn(*args, code=0, **change):
        done = subprocess.run([BIN / "enn", "ckpt", *map(str, args), "--json"], capture_output=True, text=True, timeout=300,
                              env={**environment, **change})
        assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert SECRET not in done.stdout + done.stderr
        return json.loads(done.stdout) if code == 0 else done.stderr

    try:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            fixture("write", root, 3, 40)
            source = root / "step-00000040"
            pushed = enn("push", source, "s3://shelf/runs/a")
            assert pushed[0]["sent"] == 4 and pushed[0]["place"] == "s3://shelf/runs/a/step-00000040", pushed
            assert enn("push", source, "s3://shelf/runs/a")[0]["sent"] == 0
            pulled = enn("pull", "s3://shelf/runs/a", root / "back")
            assert pulled["step"] == 40 and pulled["files"] == 4
            fixture("verify", root / "back")
            assert enn("diff", source, root / "back")["same"]
            print("pushed and pulled by S3's protocol")

            # A file larger than a part.
            fixture_big(root / "big")
            enn("push", root / "big", "s3://shelf/big")
            enn("pull", "s3://shelf/big", root / "big-back")
            assert enn("verify", root / "big-back", "--deep")["ok"]
            print("in several parts")

            # Damaged on its way, as the manifest sees it: the sizes are right, a byte is not.
            shutil.copytree(source, root / "worn")
            data = bytearray((source / "__1_0.distcp").read_bytes())
            data[len(data) // 2] ^= 1
            (root / "worn/__1_0.distcp").write_bytes(data)
            enn("push", root / "worn", "s3://shelf/worn")
            told = enn("pull", "s3://shelf/worn", root / "damaged", code=5)
            assert "__1_0.distcp" in told and "CRC-32" in told and not (root / "damaged").exists(), told
            told = enn("pull", "s3://shelf/nothing", root / "none", code=5)
            assert "s3://shelf/nothing holds no checkpoint" in told, told
            told = enn("push", source, "s3://no-such-bucket/x", code=5)
            assert "s3://no-such-bucket/x" in told, told
            print("damage, a place without checkpoint and a bucket that is not there are named")
    finally:
        process.terminate()
        process.wait()


def fixture_big(directory):
    import torch
    import torch.distributed.checkpoint as dcp
    plain = directory.with_name("plain")
    dcp.save({"w": torch.randn(7, 1 << 19)}, checkpoint_id=plain, no_dist=True)
    subprocess.run([BIN / "enn", "ckpt", "convert", plain, directory, "--to", "enn"], check=True, capture_output=True)


if __name__ == "__main__":
    main()
