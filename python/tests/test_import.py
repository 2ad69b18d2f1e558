"""`import enn` is quick, and imports neither torch nor NumPy."""

import subprocess
import sys
import unittest

from tables_common import PYTHON_PATH

LIMIT_S = 0.050
TRIES = 5


class Import(unittest.TestCase):
    def modules(self, statement: str) -> "dict[str, int]":
        """Returns the modules that a statement imports, with their microseconds."""
        command = [sys.executable, "-X", "importtime", "-c", statement]
        told = subprocess.run(command, env={"PYTHONPATH": PYTHON_PATH}, capture_output=True, text=True, check=True).stderr
        rows = [line.removeprefix("import time:").split("|") for line in told.splitlines() if line.startswith("import time:") and "[us]" not in line]
        return {name.strip(): int(microseconds) for _, microseconds, name in rows}

    def test_import_is_quick(self):
        times = [self.modules("import enn")["enn"] for _ in range(TRIES)]
        self.assertLess(min(times) / 1e6, LIMIT_S)

    def test_import_imports_nothing_heavy(self):
        for statement in ("import enn", "import enn; enn.train, enn.load, enn.Run, enn.EnnError"):
            heavy = {"torch", "numpy", "pandas", "pyarrow", "polars", "sklearn"} & set(self.modules(statement))
            self.assertEqual(heavy, set(), statement)

    def test_an_unknown_name_is_an_attribute_error(self):
        import enn

        with self.assertRaisesRegex(AttributeError, "no attribute 'trian'"):
            enn.trian
        self.assertIn("train", dir(enn))


if __name__ == "__main__":
    unittest.main()
