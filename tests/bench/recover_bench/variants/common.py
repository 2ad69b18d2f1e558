"""What all variants of the script share: arguments, model, data, and the marks that the bench reads. None of it is changed for a tool."""

import argparse
import hashlib
import os
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--every", type=int, required=True, help="steps between two checkpoints, where the variant writes some")
parser.add_argument("--hidden", type=int, required=True)
parser.add_argument("--layers", type=int, required=True)
parser.add_argument("--batch", type=int, default=32, help="rows of each rank")
parser.add_argument("--workers", type=int, required=True)
parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
parser.add_argument("--pause", type=float, required=True, help="seconds that reading a batch takes")
parser.add_argument("--folder", required=True, help="for marks and checkpoints")
ARGUMENTS = parser.parse_args()
# Before this step the bench holds the training until spares are ready.
HELD_STEP = 5
BACKEND = "nccl" if ARGUMENTS.device == "cuda" else "gloo"


def device_of(local_rank: int) -> torch.device:
    """Returns the device of a rank."""
    if ARGUMENTS.device == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def build(device: torch.device):
    """Returns the model, its optimizer and the schedule of its learning rate: the same in all processes."""
    torch.manual_seed(0)
    width = ARGUMENTS.hidden
    inner = [part for _ in range(ARGUMENTS.layers) for part in (torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.GELU())]
    model = torch.nn.Sequential(torch.nn.Linear(64, width), *inner, torch.nn.Linear(width, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ARGUMENTS.steps)
    return model, optimizer, scheduler


def batch(step: int, rank: int, device: torch.device):
    """Returns the rows and targets of a rank in a step. They follow from the step, so that no position in the data has to be saved.

    It takes a while, as reading does, and it waits at first, until the tool's spares are ready.
    """
    time.sleep(ARGUMENTS.pause)
    while step == HELD_STEP and os.path.exists(os.path.join(ARGUMENTS.folder, "hold")):
        time.sleep(0.002)
    generator = torch.Generator().manual_seed(step * 1024 + rank)
    rows = torch.randn(ARGUMENTS.batch, 64, generator=generator)
    return rows.to(device), rows.sum(1, keepdim=True).to(device)


def mark(step: int, rank: int, loss: torch.Tensor) -> None:
    """Says that a step is done. It waits for the device, as scripts do that print their loss."""
    value = loss.item()
    with open(os.path.join(ARGUMENTS.folder, f"steps-{os.getpid()}"), "a") as file:
        file.write(f"{time.monotonic():.6f} {step} {rank} {value}\n")


def finish(model: torch.nn.Module, rank: int) -> None:
    """Says that a rank has come to the end, and with which parameters."""
    data = b"".join(one.detach().cpu().numpy().tobytes() for one in model.state_dict().values())
    with open(os.path.join(ARGUMENTS.folder, f"end-{rank}"), "w") as file:
        file.write(hashlib.sha256(data).hexdigest()[:16])
