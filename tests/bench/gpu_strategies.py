"""fsdp_memory_GPU, zero1_memory_GPU: memory of a device at its fullest, as a share of that under `ddp`, of the same training of a model of
about 400 million weights by two workers, with NCCL or copy engines; fsdp_step_GPU, zero1_step_GPU: time of a step, beside that of `ddp`. The last
losses must be the same to reduction order.

    gpu_strategies.py [--precision bf16] [--ranks 2] [--width 2048] [--depth 8] [--collectives nccl]

Needs as many GPUs, the CUDA worker (`make cuda`, or ENN_WORKER) and ENN_PYTHON.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading

import _record as record
import _rows as rows
import _steps as steps

STRATEGIES = ["ddp", "zero1", "fsdp"]
SHAPE = rows.Shape(2_048, 256, (16, 32), 64, {})
EPOCHS = 3
# What may differ between losses that are summed in another order, after so many steps.
LOSS_DIFFERS_MAX = 2e-2
# Of ddp's memory: weights, gradients, two moments, average and best weights are divided under fsdp, the last four under zero1.
MEMORY_MAX = {"zero1": 0.9, "fsdp": 0.8}
LOOK_EVERY_S = 0.05


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--collectives", default="auto")
    return parser.parse_args()


def used_mib() -> int:
    """Memory that is taken of the fullest GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return max(int(line) for line in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split())


class Watch:
    """Looks at the devices' memory until it is left."""

    def __enter__(self) -> "Watch":
        self.before, self.most, self.over = used_mib(), 0, threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self) -> None:
        while not self.over.wait(LOOK_EVERY_S):
            self.most = max(self.most, used_mib())

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    @property
    def taken(self) -> int:
        """MiB beside what was taken before."""
        return self.most - self.before


def trained(folder: pathlib.Path, config: pathlib.Path, strategy: str, collectives: str) -> dict:
    """MiB, milliseconds of a step and the last epoch's loss of one run."""
    runs = folder / strategy
    with Watch() as watch:
        # One checkpoint, at the end: of eight gigabytes.
        settings = [f'train.strategy="{strategy}"', f'cluster.collectives="{collectives}"', f"train.checkpoint_every={EPOCHS}"]
        chosen = [word for setting in settings for word in ("--set", setting)]
        rows.enn(["train", str(config), "--runs-dir", str(runs), *chosen], "cuda")
    events = rows.events(runs)
    epochs = [event for event in events if event["event"] == "epoch_ended"]
    built = next(event for event in events if event["event"] == "model_built")
    milliseconds = statistics.median(epoch["step_ms"]["total"] for epoch in epochs[1:])
    return {"mib": watch.taken, "ms": milliseconds, "loss": epochs[-1]["train_loss"], "parameters": built["parameters"]}


def main() -> None:
    wanted = arguments()
    if int(steps.torch_says("torch.cuda.device_count()")) < wanted.ranks:
        print(f"needs {wanted.ranks} GPUs")
        sys.exit(77)
    machine = rows.machine_name("cuda")
    model = {**rows.model(wanted.width, 16, [4, 8]), "preset": "spatial", "heads": 16, "spatial_depth": wanted.depth}
    rows.SHAPES["strategies"] = shape = rows.Shape(SHAPE.rows, SHAPE.features, SHAPE.grid, SHAPE.batch, model)
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        rows.make_data(folder, shape)
        config = rows.configure(folder, "strategies", EPOCHS, shape.batch, "cuda")
        text = config.read_text().replace('"fp32"', json.dumps(wanted.precision))
        config.write_text(text.replace("nproc_per_node = 1", f"nproc_per_node = {wanted.ranks}"))
        found = {strategy: trained(folder, config, strategy, wanted.collectives) for strategy in STRATEGIES}
    print(json.dumps(found))
    whole, passed = found["ddp"], True
    for strategy, limit in MEMORY_MAX.items():
        own = found[strategy]
        passed &= record.record(f"{strategy}_memory_{machine}", "MiB", "lower", [own["mib"]], [whole["mib"]], "ddp", 1 / limit)
        record.record(f"{strategy}_step_{machine}", "ms", "lower", [own["ms"]], [whole["ms"]], "ddp", None)
        differs = abs(own["loss"] - whole["loss"]) / abs(whole["loss"])
        print(f"{strategy}: the loss {own['loss']:.6f} differs from ddp's {whole['loss']:.6f} by {100 * differs:.3f} %")
        passed &= differs <= LOSS_DIFFERS_MAX
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
