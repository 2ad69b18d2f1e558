"""Times optimizer steps of the peers: forward, backward, clip, fused AdamW and, for the ENN model, the average of the weights.

Usage: step.py --model NAME[,NAME…] [--compile] [--precision fp32|tf32|bf16|fp16] [--device cpu|cuda]. Prints one line of JSON per
model, as examples/step_bench does; a model that fails is a line with "error". Under torchrun the model is a DistributedDataParallel,
and rank 0 prints. fp8 has no eager training in PyTorch: only --ceiling knows it.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import time

import torch
from enn import Training
from gpt import Gpt
from matrix import Matrix

SIZES = pathlib.Path(__file__).resolve().parents[2] / "bench" / "sizes.json"
GROUPS = 6
# A matrix product of this many rows is the ceiling that figures are compared with.
CEILING_ROWS = {"cuda": 8192, "cpu": 1024}
KINDS = {"enn": Training, "gpt": Gpt, "matrix": Matrix}
LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="")
    parser.add_argument("--sizes", type=pathlib.Path, default=SIZES)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16", "fp16", "fp8"], default="fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile(mode='max-autotune')")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--ceiling", action="store_true", help="also time a large matrix product")
    return parser.parse_args()


def optimizer(model: torch.nn.Module) -> torch.optim.AdamW:
    """Matrices decay, vectors do not; one fused kernel."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)


def stand_still(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


class Trainer:
    """A model, its batch and what a step changes."""

    def __init__(self, options: argparse.Namespace, size: dict, device: torch.device) -> None:
        if options.precision == "fp8":
            raise RuntimeError("PyTorch has no eager training in fp8 of its own")
        kind = KINDS[size["kind"]]
        torch.manual_seed(5)
        self.model = kind(size).to(device).train()
        self.batch = kind.batch(size, options.batch or size["batch"], device)
        self.optimizer = optimizer(self.model)
        self.average = None if kind is not Training else [p.detach().clone() for p in self.model.parameters()]
        self.loss = self.model
        if WORLD > 1:
            here = [device.index] if device.type == "cuda" else None
            self.loss = torch.nn.parallel.DistributedDataParallel(self.model, device_ids=here, gradient_as_bucket_view=True)
        if options.compile:
            self.loss = torch.compile(self.loss, mode="max-autotune")
        low = LOW.get(options.precision)
        self.autocast = lambda: torch.autocast(device.type, low) if low else contextlib.nullcontext()
        # What a backward pass runs in; DDP's no_sync leaves out its all-reduces.
        self.within = contextlib.nullcontext
        self.scaler = torch.amp.GradScaler(device.type, enabled=options.precision == "fp16")

    def step(self) -> torch.Tensor:
        """One step; its loss, not waited for."""
        with self.within():
            with self.autocast():
                loss = self.loss(*self.batch)
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            with torch.no_grad():
                torch._foreach_lerp_(self.average, list(self.model.parameters()), 0.02)
        return loss.detach().clone()


def per_group(options: argparse.Namespace) -> int:
    """Steps between two standstills."""
    return max(1, options.steps // GROUPS)


def timed(options: argparse.Namespace, trainer: Trainer, device: torch.device) -> tuple[list[float], torch.Tensor]:
    """Milliseconds of a step, from each part of the run; the last loss."""
    groups = []
    for _ in range(options.warm_up):
        trainer.step()
    for _ in range(GROUPS):
        stand_still(device)
        start = time.perf_counter()
        for _ in range(per_group(options)):
            loss = trainer.step()
        stand_still(device)
        groups.append(1000 * (time.perf_counter() - start) / per_group(options))
    return groups, loss


def measure(options: argparse.Namespace, name: str, device: torch.device) -> dict:
    """The line of one model."""
    size = json.loads(options.sizes.read_text())[name]
    trainer = Trainer(options, size, device)
    groups, loss = timed(options, trainer, device)
    about = {
        "model": name,
        "batch": options.batch or size["batch"],
        "device": options.device,
        "precision": options.precision,
        "mode": "compile" if options.compile else "eager",
        "world": WORLD,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }
    result = {"ms": statistics.median(groups), "groups": groups, "steps": len(groups) * per_group(options), "loss": loss.item()}
    if WORLD > 1 and not options.compile:
        trainer.within = trainer.loss.no_sync
        result["without_groups"], _ = timed(options, trainer, device)
    return {"about": about, "result": result}


def ceiling(options: argparse.Namespace, device: torch.device) -> float:
    """TFLOP/s of a large matrix product in this precision: the best of some."""
    rows = CEILING_ROWS[device.type]
    a, b = (torch.randn(rows, rows, device=device, dtype=LOW.get(options.precision)) for _ in range(2))
    product = lambda: a @ b
    if options.precision == "fp8":
        a, b, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t(), torch.ones((), device=device)
        product = lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    best = float("inf")
    for _ in range(10):
        stand_still(device)
        start = time.perf_counter()
        _ = product()
        stand_still(device)
        best = min(best, time.perf_counter() - start)
    return 2 * rows**3 / best / 1e12


def main() -> None:
    """One line per model, at once."""
    options = arguments()
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if WORLD > 1:
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.set_float32_matmul_precision("high" if options.precision == "tf32" else "highest")
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.ceiling:
        machine = torch.cuda.get_device_name() if device.type == "cuda" else None
        print(json.dumps({"ceiling_tflops": ceiling(options, device), "machine": machine}), flush=True)
    for name in filter(None, options.model.split(",")):
        try:
            line = measure(options, name, device)
        except (RuntimeError, KeyError) as error:
            if WORLD > 1:
                raise
            line = {"about": {"model": name}, "error": f"{type(error).__name__}: {error}"}
        if RANK == 0:
            print(json.dumps(line), flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if WORLD > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
