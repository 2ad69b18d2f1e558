"""export_onnx_write: seconds to write a model of seven million parameters as ONNX, most weights stored transposed, until it is on disk; below
half a second.

    export_onnx.py
"""

import json
import subprocess
import sys
import tempfile

import _record as record

ROUNDS = 5
LIMIT_S = 0.5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [record.binary("onnx_fixture"), "time", folder]
        times = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["seconds"] for _ in range(ROUNDS)]
    sys.exit(0 if record.record("export_onnx_write", "s", "lower", times, [LIMIT_S], "limit", 1.0) else 1)


if __name__ == "__main__":
    main()
