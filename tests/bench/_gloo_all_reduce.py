"""The peer of allreduce_shm_vs_gloo.py: `RANKS BYTES ROUNDS` prints the seconds of every all-reduce by torch.distributed's Gloo
on loopback, and of one pass over as many bytes by all ranks at once, which no all-reduce can beat."""

import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

WARM_UP = 3


def timed(rounds, begin, do):
    """Seconds of each round but the first few."""
    seconds = []
    for _ in range(WARM_UP + rounds):
        begin()
        start = time.perf_counter()
        do()
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:]


def rank(own, size, count, rounds, port):
    """One process."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=own, world_size=size)
    tensor = torch.empty(count)

    def begin():
        tensor.fill_(own + 1.0)
        dist.barrier()

    seconds = timed(rounds, begin, lambda: dist.all_reduce(tensor))
    assert tensor.min() == tensor.max() == size * (size + 1) / 2
    ceiling = timed(rounds, begin, lambda: tensor.mul_(1.5))
    dist.barrier()
    if own == 0:
        print(json.dumps({"seconds": seconds, "ceiling": ceiling}), flush=True)
    dist.destroy_process_group()


def main():
    """Starts the ranks."""
    size, size_bytes, rounds = map(int, sys.argv[1:4])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes.spawn(rank, (size, size_bytes // 4, rounds, port), nprocs=size)


if __name__ == "__main__":
    main()
