"""step_small_{eager,plan}_vs_eager_cpu: the small model's step beside PyTorch eager's, on this machine's CPU. gpu_step.py takes it."""

import sys

import gpu_step

if __name__ == "__main__":
    sys.argv[1:1] = ["--device", "cpu", "--modes", "tape,plan", "--no-compile"]
    gpu_step.main()
