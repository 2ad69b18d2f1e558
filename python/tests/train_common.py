"""What the training scripts of the tests share: their options, the marks they leave for the test, and digests of tensors."""

import hashlib
import os
import sys
import time

from enn.elastic.guard import Guard
from enn.elastic.steps import Steps


def options(**defaults: int) -> dict[str, int]:
    """Returns the defaults, changed by the arguments key=value. With `unsafe`, steps are applied without a look whether the round is over."""
    found = defaults | {"unsafe": 0} | {key: int(value) for key, value in (one.split("=") for one in sys.argv[1:])}
    if found["unsafe"]:
        Steps._begin_to_apply = lambda self: self._interruption.hold()
        Guard.discard_from_now = lambda self: None
    return found


def wait_for_go():
    """Waits until the test lets training begin."""
    path = os.environ.get("ENN_TEST_GO")
    while path and not os.path.exists(path):
        time.sleep(0.005)


def mark(text):
    """Says that a step was done, for tests that kill at a step."""
    directory = os.environ.get("ENN_TEST_DIR")
    if directory:
        with open(os.path.join(directory, f"steps-{os.getpid()}"), "a") as file:
            file.write(f"{time.monotonic():.4f} {text}\n")


def digest(tensors):
    data = b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in tensors)
    return hashlib.sha256(data).hexdigest()[:16]
