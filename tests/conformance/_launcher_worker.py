"""A worker of launcher_pytorch_agent.py: calls a pickled function as PyTorch's agent does, and leaves what it returned.

Usage: `-m _launcher_worker CALL FOLDER`; the result is FOLDER/<round>.<rank>.pickle.
"""

import os
import pickle
import sys
import types
from pathlib import Path

import torch.distributed as distributed
from torch.distributed.elastic.multiprocessing.errors import record


def without_test_tools():
    """The module of the function imports PyTorch's test tools, which take longer than torch itself and which no function uses."""
    tools = types.ModuleType("torch.testing._internal.common_utils")
    tools.skip_but_pass_in_sandcastle_if = lambda condition, reason: lambda test: test
    tools.TEST_WITH_DEV_DBG_ASAN = tools.TEST_WITH_TSAN = False
    sys.modules[tools.__name__] = tools


def main():
    without_test_tools()
    with open(sys.argv[1], "rb") as file:
        function, args = pickle.load(file)
    result = record(function)(*args)
    path = Path(sys.argv[2]) / f"{os.environ['ENN_ROUND']}.{os.environ['RANK']}.pickle"
    path.write_bytes(pickle.dumps(result))
    # Functions of the test leave their group to the end of the process, where a thread of Gloo may abort it.
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
