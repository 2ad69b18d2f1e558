"""The tests of tables, predictors, estimators, the page and the notebook of the Python package, in the environment that has pandas, polars,
scikit-learn and a kernel of Jupyter."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")


def main():
    [tests] = re.findall(r"(?m)^TABLE_TESTS = (.*)$", (ROOT / "Makefile").read_text())
    subprocess.run([ROOT / "tests" / "conformance" / "venv.sh", "python3", TARGET, "tables"], check=True)
    environment = os.environ | {"ENN_NEEDS_TABLES": "1", "PYTHONPATH": str(ROOT / "python")}
    command = [TARGET / "venv-tables" / "bin" / "python", "-m", "unittest", *tests.split()]
    return subprocess.run(command, env=environment, cwd=ROOT / "python" / "tests", check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
