"""recover_h200, recover_h200_no_spare, lost_work_h200: what recover_cpu.py measures, with two workers on GPUs and NCCL on both sides;
below 3 s with a spare. Needs two GPUs, the CUDA worker (`make cuda`, or ENN_WORKER) and ENN_PYTHON.
"""

import os
import sys

os.environ["ENN_BENCH_DEVICE"] = "cuda"

import _steps as steps  # noqa: E402
import recover_cpu  # noqa: E402

SKIPPED = 77
SECONDS_MAX = 3.0

if __name__ == "__main__":
    if int(steps.torch_says("torch.cuda.device_count()")) < 2:
        print("gpu_recover is skipped: it needs two GPUs")
        sys.exit(SKIPPED)
    os.environ.setdefault("ENN_WORKER", str(steps.binary("enn-worker", "cuda")))
    recover_cpu.main("recover_h200", SECONDS_MAX)
