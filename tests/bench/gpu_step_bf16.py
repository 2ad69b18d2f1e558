"""step_{small,medium,large,gpt124m}_{eager,graph}_vs_eager_bf16: steps in bf16 against PyTorch eager under autocast. gpu_step.py takes it."""

import sys

import gpu_step

if __name__ == "__main__":
    sys.argv[1:1] = ["--precision", "bf16", "--no-compile", "--total-s", "600"]
    gpu_step.main()
