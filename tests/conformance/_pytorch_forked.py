"""PyTorch's own tests of torchrun and of its agent once more, with workers that are forked: launcher_pytorch.py and
launcher_pytorch_agent.py with `--preload torch`.

    make programs                  all of torchrun's, and those of the agent that have most to do with how a worker is started
    _pytorch_forked.py all         all of both, minutes longer

Most of torchrun's scripts do not import torch, and are forked nonetheless, since `--preload torch` asks for it; what --no-python starts is
executed.
"""

import json
import multiprocessing
import os
import sys
from pathlib import Path

import _enn_torchrun
import launcher_pytorch
import launcher_pytorch_agent

# Restarts, failures, logs, error files, groups, RPC.
AGENT = ("double_agent_fault_tolerance_etcd", "rank_restart_after_failure", "run_bipolar_function_c10d", "run_sad_function_c10d",
         "run_with_custom_log_lines", "run_function_with_return_value_c10d", "simple_dist_sum_c10d", "torch_rpc_c10d")

executed_launch = _enn_torchrun.launch
# How many workers were executed, and how many forked; a test may launch in processes of its own.
starts = multiprocessing.Array("i", 2)


def launch(args, runs, extra=None):
    """Like the function of this name that it replaces, with workers that are forked where the program is Python's."""
    if "--no-python" not in args and "PET_NO_PYTHON" not in os.environ:
        args = ["--preload", "torch", *args]
    result = executed_launch(args, runs, extra)
    for path in Path(runs).rglob("events.jsonl"):
        for event in map(json.loads, path.read_text().splitlines()):
            if event["event"] == "worker_started":
                with starts:
                    starts[event.get("forked", False)] += 1
    return result


def passes(check, names):
    """Whether the tests of these names pass, all where there are none; tells how their workers were started."""
    sys.argv[1:] = names
    before = list(starts)
    try:
        check.main()
    except SystemExit as exited:
        executed, forked = (after - once for once, after in zip(before, starts))
        print(f"{check.__name__}: {forked} workers were forked, {executed} executed", flush=True)
        return not exited.code and forked > 0


def main():
    _enn_torchrun.launch = launch
    chosen = [] if sys.argv[1:] == ["all"] else [f"LocalElasticAgentTest.test_{name}" for name in AGENT]
    passed = [passes(launcher_pytorch, []), passes(launcher_pytorch_agent, chosen)]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
