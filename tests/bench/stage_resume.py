#!/usr/bin/env python3
"""Staging that is killed at about 80 % and given again, beside one that is not disturbed: a text table of 12 numbers a row.

The peer is the undisturbed staging, in the same run; the digests of what both have made are compared.

    python3 tests/bench/stage_resume.py [--rows 2000000] [--runs 3]

Writes target/bench/stage_resume.json.
"""

import argparse, hashlib, json, pathlib, random, shutil, subprocess, tempfile, time

import _record

COLUMNS = 12
SHARE = 0.8


def table(path, rows):
    source = random.Random(1)
    block = [",".join(f"{source.uniform(-1e3, 1e3):.4f}" for _ in range(COLUMNS)) for _ in range(10_000)]
    with open(path, "w") as file:
        file.write(",".join(f"c{i}" for i in range(COLUMNS)) + "\n")
        for row in range(rows):
            file.write(f"{row}{block[row % len(block)][block[row % len(block)].index(','):]}\n")


def contents(out):
    digest = hashlib.blake2b()
    (made,) = [path for path in out.iterdir() if not path.name.startswith(".")]
    for path in sorted(made.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    table(folder / "t.csv", args.rows)
    features = ", ".join(f'{{ column = "c{i}" }}' for i in range(COLUMNS - 1))
    (folder / "t.toml").write_text(f'name = "t"\n[data]\nfiles = ["t.csv"]\n[data.rows]\ntargets = ["c{COLUMNS - 1}"]\nfeatures = [{features}]\n')
    command = [_record.binary("enn"), "stage", "t.toml", "--json", "--out"]
    digests, resumed = set(), []

    def stage(out):
        # The file's digest is known, as it is when staging is given again: what is timed is the staging.
        began = time.monotonic()
        done = subprocess.run([*command, out], cwd=folder, env=_record.environment(), capture_output=True, text=True, check=True)
        seconds = time.monotonic() - began
        digests.add(contents(folder / out))
        return seconds, [json.loads(line) for line in done.stdout.splitlines()]

    def known(out):
        shutil.rmtree(folder / out, ignore_errors=True)
        (folder / out).mkdir()
        if (folder / "sources.json").exists():
            shutil.copy(folder / "sources.json", folder / out / ".sources.json")

    def whole():
        known("whole")
        seconds, _ = stage("whole")
        shutil.copy(folder / "whole/.sources.json", folder / "sources.json")
        return seconds

    def cut():
        known("cut")
        process = subprocess.Popen([*command, "cut"], cwd=folder, env=_record.environment(), stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "stage_progressed" and event["bytes"] >= SHARE * event["bytes_total"]:
                break
        process.kill()
        process.wait()
        seconds, events = stage("cut")
        resumed.extend(event["resumed_rows"] for event in events if event.get("resumed_rows"))
        return seconds

    whole()
    ours, peers = _record.alternate(args.runs, cut, whole)
    shutil.rmtree(folder)
    assert len(digests) == 1, "what was gone on with is not what an undisturbed staging makes"
    assert len(resumed) == args.runs, f"{len(resumed)} of {args.runs} went on: {resumed}"
    more = {"rows": args.rows, "resumed_rows": resumed}
    _record.record("stage_resume", "s", "lower", ours, peers, "undisturbed", 1.0, more)


if __name__ == "__main__":
    main()
