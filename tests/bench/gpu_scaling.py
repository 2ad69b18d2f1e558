"""Steps of several ranks on one machine: overlap_{2,4}, scaling_{2,4}, and step times against DistributedDataParallel.

    gpu_scaling.py [--models large,gpt124m] [--precision bf16] [--modes tape,graph] [--ranks 2,4] [--total-s 200]
    gpu_scaling.py --ranks 2 --collectives nccl --no-peer      # NCCL's sums; the copy engines' with auto
    gpu_scaling.py --ranks 2 --bucket-mib 50 --no-peer

overlap_N: share of the all-reduces' time that a step hides: 1 − (step − step without all-reduce) / all-reduces alone, all three
from the same processes. scaling_N: samples/s of N ranks, each with the whole batch, over N × those of one rank alone.
ddp_N_MODEL: step time of N ranks against PyTorch's. The plain name is that of the first model as a captured graph; others say more.

Ranks are started by `enn run`, or by torchrun where there is no enn. Needs ENN_PYTHON, a Python with torch 2.11, or runs under it.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

import _record as record
import _steps as steps

OVERLAP_MIN_PERCENT = 80.0
SCALING_MIN_PERCENT = 95.0
# What run.py takes for "this machine cannot".
SKIPPED = 77
# One run of all models and modes, seconds.
RUN_MAX_S = 90


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--models", default="large,gpt124m")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--modes", default="graph,tape")
    parser.add_argument("--ranks", help="how many, with commas; 2 and 4 as far as there are GPUs")
    parser.add_argument("--collectives", choices=["auto", "nccl"], default="auto", help="who sums the gradients of ours")
    parser.add_argument("--bucket-mib", type=float, help="largest bucket of gradients of ours, instead of the default")
    parser.add_argument("--binary", type=pathlib.Path, help="step_bench, instead of the one under target/")
    parser.add_argument("--enn", type=pathlib.Path, help="enn, instead of the one under target/")
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--warm-up", type=int, default=12)
    parser.add_argument("--total-s", type=float, default=200, help="no run is begun or goes on after that")
    parser.add_argument("--no-peer", action="store_true")
    return parser.parse_args()


class Bench:
    """Runs ours and the peer alone and on ranks, and keeps what they said by (side, ranks, model, mode)."""

    def __init__(self, options: argparse.Namespace, runs: str) -> None:
        self.options, self.runs, self.runner = options, runs, steps.Runner(options.total_s)
        self.binary = options.binary or steps.binary("step_bench", options.device)
        if not self.binary.exists():
            sys.exit(f"{self.binary}: not found; `make build-all`, or `make cuda` for a GPU, makes it")
        self.environment = steps.library_environment(options.device)
        self.peer_environment = record.peer_environment()
        if options.device == "cpu":
            for environment in (self.environment, self.peer_environment):
                environment["OMP_NUM_THREADS"] = "1"
        self.results: dict[tuple[str, int, str, str], dict] = {}

    def common(self) -> list[str]:
        """Flags both sides take."""
        options = self.options
        flags = ["--model", options.models, "--device", options.device, "--precision", options.precision]
        return [*flags, "--steps", str(options.steps), "--warm-up", str(options.warm_up)]

    def torchrun(self, ranks: int) -> list[str]:
        """PyTorch's own launcher, waiting for a program."""
        return [steps.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]

    def ours(self, ranks: int) -> None:
        """All models in all modes, in one process for each rank."""
        command = [str(self.binary), "--sizes", str(steps.SIZES), "--mode", self.options.modes, *self.common()]
        command += ["--collectives", self.options.collectives]
        if self.options.bucket_mib:
            command += ["--bucket-mib", str(self.options.bucket_mib)]
        if ranks > 1:
            enn = self.options.enn or record.ROOT / "target" / "release" / "enn"
            launcher = [str(enn), "run", "--runs-dir", self.runs, "--standalone", "--grace", "3", "--nproc-per-node", str(ranks)]
            launcher = launcher if enn.exists() else self.torchrun(ranks)
            command = [*launcher, "--no-python", *command, "--overlap"]
        self.keep("ours", ranks, self.runner.run(f"ours on {ranks}", command, self.environment, RUN_MAX_S))

    def peer(self, ranks: int) -> None:
        """All models, eager."""
        start = [steps.python()] if ranks == 1 else self.torchrun(ranks)
        command = [*start, str(steps.PEERS), *self.common()]
        self.keep("peer", ranks, self.runner.run(f"peer on {ranks}", command, self.peer_environment, RUN_MAX_S))

    def keep(self, side: str, ranks: int, lines: list[dict]) -> None:
        """Files results."""
        for line in lines:
            about = line["about"]
            if "error" in line:
                self.runner.left_out(f"{side} {about['model']} on {ranks}", line["error"])
                continue
            if about["world"] != ranks:
                sys.exit(f"{side} ran as {about['world']} ranks, not {ranks}")
            self.results[side, ranks, about["model"], about["mode"]] = line
            words = f"{side} on {ranks}: {about['model']:8} {about['mode']:6} {line['result']['ms']:10.3f} ms"
            print(words, *line["result"].get("faults", []), flush=True)

    def groups(self, side: str, ranks: int, model: str, mode: str) -> list[float] | None:
        """Milliseconds of steps, from each part of the run."""
        line = self.results.get((side, ranks, model, mode))
        return line and line["result"]["groups"]

    def name(self, figure: str, ranks: int, model: str, mode: str) -> str:
        """The plain name for the first model as a graph."""
        first = model == self.options.models.split(",")[0]
        return f"{figure}_{ranks}" + ("" if first else f"_{model}") + ("" if mode == "graph" else f"_{mode}")

    def about(self, model: str, mode: str, ranks: int) -> dict:
        """What every figure says besides."""
        line = self.results["ours", ranks, model, mode]
        return {
            "model": model,
            "mode": mode,
            "precision": self.options.precision,
            "batch_per_rank": line["about"]["batch"],
            "parameters": line["about"]["parameters"],
            "backend": line["about"]["backend"],
            "bucket_mib": line["about"].get("bucket_mib"),
        }

    def overlap(self, ranks: int, model: str, mode: str) -> bool | None:
        """Writes overlap_N; whether it passes, none without a result."""
        line = self.results.get(("ours", ranks, model, mode))
        if line is None:
            return None
        result = line["result"]
        without, alone = (statistics.median(result[key]) for key in ("without_groups", "all_reduce_groups"))
        hidden = [100 * (1 - max(0.0, step - without) / alone) for step in result["groups"]]
        moved = 2 * (ranks - 1) / ranks * result["all_reduce_bytes"]
        more = {
            "step_ms": result["ms"],
            "without_ms": without,
            "all_reduce_ms": alone,
            "all_reduce_bytes": result["all_reduce_bytes"],
            "bus_gb_per_s": moved / alone / 1e6,
            "exposed_ms": result["ms"] - without,
        }
        peer = self.results.get(("peer", ranks, model, "eager"))
        if peer:
            # Against the same all-reduces: DDP's move as many bytes.
            more["ddp_exposed_ms"] = peer["result"]["ms"] - statistics.median(peer["result"]["without_groups"])
            more["ddp_percent"] = 100 * (1 - max(0.0, more["ddp_exposed_ms"]) / alone)
        name = self.name("overlap", ranks, model, mode)
        print(f"{name}: {statistics.median(hidden):.1f} % hidden", {key: round(value, 3) for key, value in more.items()})
        limit = [OVERLAP_MIN_PERCENT]
        return record.record(name, "%", "higher", hidden, limit, "the least that is asked for", 1.0, self.about(model, mode, ranks) | more)

    def scaling(self, ranks: int, model: str, mode: str) -> bool | None:
        """Writes scaling_N; whether it passes, none when a side is missing."""
        one, many = (self.groups("ours", n, model, mode) for n in (1, ranks))
        if one is None or many is None:
            return None
        alone = statistics.median(one)
        share = [100 * alone / step for step in many]
        more = {"one_ms": alone, "step_ms": statistics.median(many)}
        batch = self.about(model, mode, ranks)["batch_per_rank"]
        more["samples_per_s"] = 1e3 * ranks * batch / more["step_ms"]
        torch_one, torch_many = (self.groups("peer", n, model, "eager") for n in (1, ranks))
        if torch_one and torch_many:
            more["ddp_percent"] = 100 * statistics.median(torch_one) / statistics.median(torch_many)
        name = self.name("scaling", ranks, model, mode)
        print(f"{name}: {statistics.median(share):.1f} %", {key: round(value, 3) for key, value in more.items()})
        limit = [SCALING_MIN_PERCENT]
        return record.record(name, "%", "higher", share, limit, "the least that is asked for", 1.0, self.about(model, mode, ranks) | more)

    def against_ddp(self, ranks: int, model: str, mode: str) -> bool | None:
        """Writes the step time against DDP's; whether it passes, none when a side is missing."""
        ours, peer = self.groups("ours", ranks, model, mode), self.groups("peer", ranks, model, "eager")
        if ours is None or peer is None:
            return None
        sides = [self.results["ours", ranks, model, mode]["about"], self.results["peer", ranks, model, "eager"]["about"]]
        if any(sides[0][key] != sides[1][key] for key in ("parameters", "batch")):
            sys.exit(f"not the same work for {model}: {sides[0]} here, {sides[1]} there")
        kind = "eager" if mode == "tape" else mode
        about = self.about(model, mode, ranks)
        return record.record(f"ddp_{ranks}_{model}_{kind}", "ms", "lower", ours, peer, "PyTorch DDP eager, fused AdamW", 1.0, about)


def main() -> None:
    """Runs in the order of what matters, then every figure for which there is what it needs."""
    options = arguments()
    if options.ranks:
        ranks = [int(n) for n in options.ranks.split(",")]
    else:
        there = int(steps.torch_says("torch.cuda.device_count()"))
        ranks = [n for n in (2, 4) if n <= there]
        if not ranks:
            print(f"gpu_scaling is skipped: {there} GPUs found, expected 2 or 4; --ranks 2 --device cpu --models gpt_tiny --modes tape tries it")
            sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as runs:
        bench = Bench(options, runs)
        bench.ours(1)
        for n in ranks:
            bench.ours(n)
            if not options.no_peer:
                bench.peer(n)
        if not options.no_peer:
            bench.peer(1)
    verdicts = {}
    for n in ranks:
        for model in options.models.split(","):
            for mode in options.modes.split(","):
                for figure in (bench.overlap, bench.scaling, bench.against_ddp):
                    verdicts[figure.__name__, n, model, mode] = figure(n, model, mode)
    below = [" ".join(map(str, key)) for key, passed in verdicts.items() if passed is False]
    made = sum(passed is not None for passed in verdicts.values())
    print(f"{made} figures in {bench.runner.elapsed():.0f} s; below the limit: {below or 'none'}")
    sys.exit(0 if made else 1)


if __name__ == "__main__":
    main()
