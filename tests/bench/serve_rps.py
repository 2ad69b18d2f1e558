"""serve_rps_CONNECTIONS_ROWS: requests per second of `enn serve` beside a plain server with FastAPI, uvicorn and PyTorch that serves the
same model (`enn export --to pt2`), one process each, one thread for the model; JSON bodies of 1 and of 256 rows, at 1, 8 and 64 connections.
Medians and 99th percentiles of the latency are in the record.

    serve_rps.py [--seconds 5] [--rounds 3]

Needs ENN_PYTHON, a Python with torch 2.11, and PyPI for the peer's server.
"""

import argparse
import dataclasses
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np

import _record as record
import _rows as rows
import _steps as steps

PEER = pathlib.Path(__file__).with_name("_serve_peer.py")
PINS = ["fastapi==0.121.3", "uvicorn==0.38.0"]
CONNECTIONS = [1, 8, 64]
ROWS = [1, 256]
START_SECONDS_MAX = 180


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def libraries():
    """The peer's server, beside the Python that has PyTorch."""
    folder = record.ROOT / "target" / "tools" / "serve_peer"
    if not (folder / "fastapi").exists():
        uv = record.ROOT / "target" / "tools" / "uv" / "bin" / "uv"
        command = [str(uv), "pip", "install", "--quiet", "--python", steps.python(), "--target", str(folder), *PINS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"serve_rps: the peer cannot be installed: {done.stderr.strip()[-500:]}", file=sys.stderr)
            sys.exit(77)
    return folder


def started(command, environment, port):
    """A server that answers."""
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    until = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
            return server
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                sys.exit(f"{command[:3]} does not answer")
            time.sleep(0.1)


def load(port, connections, seconds, body):
    command = [record.binary("serve_load"), f"127.0.0.1:{port}", str(connections), str(seconds), str(body)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"serve_load: {done.stderr}")
    found = json.loads(done.stdout)
    if found["errors"]:
        sys.exit(f"serve_load: {found['errors']} requests failed")
    return found


def measure(ports, folder, options):
    passed = True
    data = np.load(folder / "x.npy", mmap_mode="r")
    for count in ROWS:
        body = folder / f"body-{count}.json"
        body.write_text(json.dumps({"rows": data[:count].tolist()}))
        for connections in CONNECTIONS:
            ours, peer = record.alternate(options.rounds, *(lambda port=port: load(port, connections, options.seconds, body) for port in ports))
            more = {f"{side}_{key}": statistics.median(one[key] for one in found)
                    for side, found in [("ours", ours), ("peer", peer)] for key in ["p50_ms", "p99_ms"]}
            rates = [[one["rps"] for one in found] for found in (ours, peer)]
            name = f"serve_rps_{connections}_{count}"
            print(f"{name}: {statistics.median(rates[0]):,.0f}/s, peer {statistics.median(rates[1]):,.0f}/s; {more}", flush=True)
            passed &= record.record(name, "requests/s", "higher", *rates, "FastAPI, uvicorn, PyTorch 2.11 eager", None, more)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    site = libraries()
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        rows.make_data(folder, dataclasses.replace(rows.SHAPES["small"], rows=2_000))
        config = rows.configure(folder, "small", 1, 128, "cpu")
        rows.enn(["train", str(config), "--runs-dir", str(folder / "runs")], "cpu")
        [run] = [path.parent for path in (folder / "runs").glob("*/run.json")]
        enn, environment = record.binary("enn"), record.environment()
        subprocess.run([enn, "export", str(run), "--to", "pt2", "--name", "model", "--out", str(folder)], env=environment, check=True)
        ports = [free_port(), free_port()]
        serve = [enn, "serve", str(run), "--addr", str(ports[0]), "--set", "train.threads=1"]
        peer = [steps.python(), str(PEER), str(folder / "model.pt2"), str(ports[1]), "1"]
        servers = []
        try:
            servers.append(started(serve, environment, ports[0]))
            servers.append(started(peer, {**record.peer_environment(), "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}, ports[1]))
            passed = measure(ports, folder, options)
        finally:
            for server in servers:
                server.terminate()
                server.wait()
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
