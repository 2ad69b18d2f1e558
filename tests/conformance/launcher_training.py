"""Real training under torchrun 2.11 and under `enn run`: the same weights, bit for bit, and the same on every rank.

DistributedDataParallel and fully_shard of PyTorch over Gloo, and Hugging Face accelerate, on two processes.
"""

import _launcher_programs as programs
from _both_launchers import Run, both, main, same


def trained(base, program):
    theirs, ours = both(base, program, ["--standalone", "--nproc-per-node", "2"], ["program.py"])
    assert theirs.code == ours.code == 0, f"{theirs}\n{ours}"
    said = same(theirs, ours, Run.said)
    assert len(said) == 2 and said[0]["weights"] == said[1]["weights"], said


def case_ddp(base):
    trained(base, programs.DDP)


def case_fsdp2(base):
    trained(base, programs.FSDP2)


def case_accelerate(base):
    theirs, ours = both(base, programs.ACCELERATE, ["--standalone", "--nproc-per-node", "2"], ["program.py"])
    assert theirs.code == ours.code == 0, f"{theirs}\n{ours}"
    said = same(theirs, ours, Run.said)
    assert [said[rank]["processes"] for rank in (0, 1)] == [2, 2] and "MULTI_CPU" in said[0]["kind"], said
    assert said[0]["weights"] == said[1]["weights"], said


if __name__ == "__main__":
    main(globals())
