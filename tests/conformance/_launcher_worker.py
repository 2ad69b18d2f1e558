"""A worker of launcher_pytorch_agent.py: calls a pickled function as PyTorch's agent does, and leaves what it returned.

Usage: `-m _launcher_worker CALL FOLDER`; the result is FOLDER/<round>.<rank>.pickle.
"""

import os
import pickle
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record


def main():
    with open(sys.argv[1], "rb") as file:
        function, args = pickle.load(file)
    result = record(function)(*args)
    path = Path(sys.argv[2]) / f"{os.environ['ENN_ROUND']}.{os.environ['RANK']}.pickle"
    path.write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
