"""Runs @ARTIFACT@, beside this file, on the rows of a file that is named, e.g. [[1.5, null, 3]], or else on rows that are made up.

What the columns are and their order is in @ARTIFACT@.json: a category goes in by its number there, null is missing.

    python3 '@FILE@'
"""

import json
import pathlib
import sys

import numpy as np
@IMPORTS@

here = pathlib.Path(__file__).parent
text = pathlib.Path(sys.argv[1]).read_text() if sys.argv[1:] else "@ROWS@"
try:
    x = np.array(json.loads(text), np.float32)
except (TypeError, ValueError) as error:
    sys.exit(f"expected rows of @WIDTH@ numbers: {error}")
if x.ndim != 2 or not len(x) or x.shape[1] != @WIDTH@:
    sys.exit(f"the rows are of shape {x.shape}, expected rows of @WIDTH@ numbers")
n = len(x)
# What goes in besides rows begins at zero. All of it is contiguous and of single precision: not every runtime looks.
given = {name: np.zeros(shape, np.float32) for name, shape in {@INPUTS@}.items()}
given["@X@"] = x
@BODY@
for row in np.reshape(answers, (n, -1)):
    print(*row)
