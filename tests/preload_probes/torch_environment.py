"""Sets what torch reads at its import, and then imports it."""

import os

os.environ["OMP_NUM_THREADS"] = "2"
os.environ["TORCH_LOGS"] = "+dynamo"
import logging  # noqa: E402

import torch  # noqa: E402

print("threads", torch.get_num_threads())
import torch._dynamo  # noqa: E402

print("level", logging.getLogger("torch._dynamo").level)
# What the logs say at exit is full of times.
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
