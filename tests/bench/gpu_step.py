"""Optimizer steps against PyTorch in one run: step_{small,medium,large,gpt124m}_{eager,graph}_vs_{eager,compile}, and fp8_vs_bf16.

    gpu_step.py [--device cuda|cpu] [--precision fp32,tf32,bf16,fp16,fp8] [--models small,medium,large,gpt124m] [--total-s 240]
    gpu_step.py --precision bf16,fp8 --models matrix

The same sizes (sizes.json), batch and work on both sides: forward, backward, clip, AdamW, average of the weights where training has
one. Ours: examples/step_bench, built with `--features cuda` for a GPU (`make cuda`). Peers: tests/conformance/peers, eager and
torch.compile(mode="max-autotune"). Refuses to compare models of different size. What does not fit in the time is said, not guessed:
compile runs are cut at --limit-s each. gpu_step_bf16.py and gpu_compile.py run it for bf16, the second beside torch.compile only, which
takes an hour; step_small.py on a CPU, whose figures end with _cpu. Needs ENN_PYTHON, a Python with torch 2.11, or runs under it.

A precision other than fp32 is part of the figure's name: step_large_eager_vs_eager_bf16. Peers: autocast for bf16 and fp16,
set_float32_matmul_precision("high") for tf32; fp8 has none and is compared with our own bf16, with PyTorch's bf16 beside it.
"""

import argparse
import os
import pathlib
import sys

import _record as record
import _steps as steps

# Smallest ratio of the peer's time to ours that passes. Like is compared with like; our eager against their compiled is for information.
LIMITS = {("eager", "eager"): 1.0, ("graph", "eager"): 1.0, ("graph", "compile"): 0.95, ("plan", "eager"): 1.0}
LIMIT_SMALL_EAGER = {"cuda": 1 / 0.6, "cpu": 1 / 0.8}
LIMIT_FP8 = 1.3
# On the CPU there is neither a graph nor time for the large ones.
MODELS = {"cuda": "small,medium,large,gpt124m", "cpu": "small"}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--models")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--modes", default="tape,graph", help="how ours runs; tape is called eager in the figures' names")
    parser.add_argument("--binary", type=pathlib.Path, help="step_bench, instead of the one under target/")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=12)
    parser.add_argument("--total-s", type=float, default=240, help="no run is begun after that")
    parser.add_argument("--limit-s", type=float, default=60, help="longest a compile run may take")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-eager", action="store_true", help="of the peer only what is compiled")
    parser.add_argument("--kernels", action="append", default=[], help="OP=KERNEL,…: an order of kernels for ours")
    return parser.parse_args()


class Bench:
    """Runs both sides and keeps what they said."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.runner = options, steps.Runner(options.total_s)
        self.binary = options.binary or steps.binary("step_bench", options.device)
        if not self.binary.exists():
            sys.exit(f"{self.binary}: not found; `make build-all`, or `make cuda` for a GPU, makes it")
        self.results: dict[tuple[str, str, str, str], dict] = {}
        self.ceilings: dict[str, float] = {}
        self.compile_run_s: dict[tuple[str, str], float] = {}
        self.machine: str | None = None

    def keep(self, side: str, precision: str, lines: list[dict]) -> None:
        """Files results by side, model, precision and mode."""
        for line in lines:
            if "ceiling_tflops" in line:
                self.ceilings[precision], self.machine = line["ceiling_tflops"], line["machine"]
            elif "error" in line:
                self.runner.left_out(f"{side} {line['about']['model']} {precision} {line['about'].get('mode', '')}", line["error"])
            else:
                about = line["about"]
                result = line["result"]
                self.results[side, about["model"], precision, about["mode"]] = line
                words = f"{side:5} {about['model']:8} {precision} {about['mode']:8} {result['ms']:10.3f} ms loss {result['loss']:.4f}"
                print(words, *result.get("faults", []), flush=True)

    def ours(self, models: list[str], precision: str) -> None:
        """Every model in every mode, each model in a process of its own."""
        environment = steps.library_environment(self.options.device)
        modes = ",".join(self.modes())
        for model in models:
            command = [str(self.binary), "--sizes", str(steps.SIZES), "--model", model]
            command += ["--mode", modes, "--precision", precision, *self.common()]
            for line in self.options.kernels:
                command += ["--kernels", line]
            self.keep("ours", precision, self.runner.run(f"ours {model} {precision} {modes}", command, environment, 120))

    def modes(self) -> list[str]:
        """Those that the device has."""
        return [mode for mode in self.options.modes.split(",") if (mode, self.options.device) != ("graph", "cpu")]

    def peers(self, models: list[str], precision: str) -> None:
        """Eager runs in one process; compile runs each in its own, so that one that is cut costs no other."""
        command = [steps.python(), str(steps.PEERS), "--precision", precision, *self.common()]
        environment = record.peer_environment()
        named = precision != "fp8" and not self.options.no_eager
        eager = [*command, "--ceiling"] + (["--model", ",".join(models)] if named else [])
        if precision == "fp8" and self.options.device == "cpu":
            return
        self.keep("peer", precision, self.runner.run(f"peer {precision} eager", eager, environment, 180))
        for model in [] if self.options.no_compile or precision == "fp8" else models:
            compiled = [*command, "--compile", "--model", model]
            what = f"peer {model} {precision} compile"
            begun = self.runner.elapsed()
            self.keep("peer", precision, self.runner.run(what, compiled, environment, self.options.limit_s))
            self.compile_run_s[model, precision] = self.runner.elapsed() - begun
            print(f"{what}: {self.compile_run_s[model, precision]:.0f} s in all", flush=True)

    def common(self) -> list[str]:
        """Flags both sides take."""
        options = self.options
        flags = ["--device", options.device, "--steps", str(options.steps), "--warm-up", str(options.warm_up)]
        return [*flags, "--threads", str(os.cpu_count())] if options.device == "cpu" else flags

    def figure(self, model: str, precision: str, mode: str, peer_mode: str) -> bool | None:
        """Writes one figure; whether it passes, none when a side is missing."""
        ours = self.results.get(("ours", model, precision, mode))
        peer = self.results.get(("peer", model, precision, peer_mode))
        if ours is None or peer is None:
            return None
        counts = ours["about"]["parameters"], peer["about"]["parameters"]
        batches = ours["about"]["batch"], peer["about"]["batch"]
        if counts[0] != counts[1] or batches[0] != batches[1]:
            sys.exit(f"not the same work for {model}: {counts[0]} parameters, batch {batches[0]} here; {counts[1]}, {batches[1]} there")
        kind = "eager" if mode == "tape" else mode
        suffix = ("" if precision == "fp32" else f"_{precision}") + ("_cpu" if self.options.device == "cpu" else "")
        limit = LIMITS.get((kind, peer_mode))
        if (model, kind, peer_mode) == ("small", "eager", "eager"):
            limit = LIMIT_SMALL_EAGER[self.options.device]
        peer_name = {"eager": "PyTorch eager, fused AdamW", "compile": "torch.compile(max-autotune), fused AdamW"}[peer_mode]
        more = self.about(ours, precision)
        if peer_mode == "compile":
            more["compile_run_s"] = self.compile_run_s.get((model, precision))
        name = f"step_{model}_{kind}_vs_{peer_mode}{suffix}"
        say(name, more)
        groups = ours["result"]["groups"], peer["result"]["groups"]
        return record.record(name, "ms", "lower", *groups, peer_name, limit, more)

    def fp8(self, model: str, mode: str) -> bool | None:
        """Writes fp8 against our own bf16; whether it passes, none when a side is missing."""
        ours = self.results.get(("ours", model, "fp8", mode))
        bf16 = self.results.get(("ours", model, "bf16", mode))
        if ours is None or bf16 is None:
            return None
        more = self.about(ours, "fp8")
        of_torch = {kind: self.results.get(("peer", model, "bf16", kind)) for kind in ("eager", "compile")}
        more["torch_bf16_ms"] = {kind: line["result"]["ms"] for kind, line in of_torch.items() if line}
        more["bf16_tflops"] = bf16["result"]["flops"] / bf16["result"]["ms"] / 1e9
        # The figure is that of the matrices, as a captured graph.
        matrix = model.startswith("matrix")
        name = ("fp8_vs_bf16" if matrix else f"fp8_vs_bf16_{model}") + ("" if mode == "graph" else f"_{mode}")
        say(name, more)
        groups = ours["result"]["groups"], bf16["result"]["groups"]
        return record.record(name, "ms", "lower", *groups, "our own bf16", LIMIT_FP8 if matrix else None, more)

    def about(self, ours: dict, precision: str) -> dict:
        """What else there is to say of a result of ours."""
        result = ours["result"]
        reached = result["flops"] / result["ms"] / 1e9
        ceiling = self.ceilings.get(precision)
        more = {
            "precision": precision,
            "batch": ours["about"]["batch"],
            "parameters": ours["about"]["parameters"],
            "operations": result["operations"],
            "tflops": reached,
            "ceiling_tflops": ceiling,
            "of_ceiling": None if not ceiling else reached / ceiling,
            "kernels": result["kernels"],
            "faults": result["faults"],
        }
        return more | ({"device": self.machine} if self.machine else {})


def say(name: str, more: dict) -> None:
    """How far a figure of ours is from what the machine was measured to do."""
    share = more["of_ceiling"]
    ceiling = "no ceiling was measured" if share is None else f"{100 * share:.1f} % of the ceiling of {more['ceiling_tflops']:.1f}"
    print(f"{name}: {more['tflops']:.2f} TFLOP/s, {ceiling}", flush=True)


def main() -> None:
    """Both sides, then every figure for which both are there."""
    options = arguments()
    bench = Bench(options)
    models = (options.models or MODELS[options.device]).split(",")
    for precision in options.precision.split(","):
        bench.ours(models, precision)
        bench.peers(models, precision)
    verdicts = {}
    for precision in options.precision.split(","):
        for model in models:
            for mode in bench.modes():
                for peer_mode in ("eager", "compile"):
                    verdicts[model, precision, mode, peer_mode] = bench.figure(model, precision, mode, peer_mode)
                if precision == "fp8":
                    verdicts[model, precision, mode, "bf16"] = bench.fp8(model, mode)
    below = [" ".join(key) for key, passed in verdicts.items() if passed is False]
    for key, line in bench.results.items():
        if key[0] == "ours":
            ran = {op: "+".join(found["ran"]) for op, found in line["result"]["kernels"].items()}
            print("kernels", *key[1:], *(f"{op}={kernels}" for op, kernels in sorted(ran.items())))
    print(f"{sum(v is not None for v in verdicts.values())} figures in {bench.runner.elapsed():.0f} s; below the limit: {below or 'none'}")
    sys.exit(0 if any(v is not None for v in verdicts.values()) else 1)


if __name__ == "__main__":
    main()
