"""The console script `enn-torchrun`: the program `enn` under the name by which it takes torchrun's command line."""

import os
import sys

from .errors import EnnError
from .program import executable


def torchrun():
    # As torchrun does: workers run on the Python of this script.
    if sys.executable:
        os.environ.setdefault("PYTHON_EXEC", sys.executable)
    try:
        program = executable()
        os.execv(program, ["enn-torchrun", *sys.argv[1:]])
    except (EnnError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
