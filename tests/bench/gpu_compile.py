"""step_{small,medium,large,gpt124m}_graph_vs_compile_bf16: captured steps against torch.compile(mode="max-autotune"). gpu_step.py takes it.

An hour: compiling takes 240 s for gpt124m, 449 s for small, 875 s for medium and 1,410 s for large, the last two on an H100. The shortest come first.
"""

import sys

import gpu_step

if __name__ == "__main__":
    wanted = ["--precision", "bf16", "--models", "gpt124m,small,medium,large", "--modes", "graph", "--no-eager"]
    sys.argv[1:1] = [*wanted, "--limit-s", "2400", "--total-s", "5100"]
    gpu_step.main()
