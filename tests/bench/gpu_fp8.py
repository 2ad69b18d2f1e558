"""fp8_vs_bf16: a step of large matrices in 8 bits against our own bf16, with PyTorch's bf16 beside it. gpu_step.py takes it."""

import sys

import gpu_step

if __name__ == "__main__":
    sys.argv[1:1] = ["--precision", "bf16,fp8", "--models", "matrix", "--modes", "graph,tape", "--total-s", "180"]
    gpu_step.main()
