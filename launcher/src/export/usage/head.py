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
rows = json.loads(pathlib.Path(sys.argv[1]).read_text() if sys.argv[1:] else "@ROWS@")
n = len(rows)
given = {name: np.zeros(shape, np.float32) for name, shape in {@INPUTS@}.items()}
given["@X@"][:] = rows
@BODY@
for row in np.reshape(answers, (n, -1)):
    print(*row)
