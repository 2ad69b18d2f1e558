"""What the tests of `enn.train` share: the program, a table, and quick settings."""

import os
import shutil
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON_PATH = str(ROOT / "python")
WEATHER = ROOT / "examples" / "weather" / "weather.csv"
QUICK = {"epochs": 2, "baselines": "quick", "workers": 1, "progress": False}
PACKAGES = ("pandas", "polars", "pyarrow", "sklearn")


def missing() -> "str | None":
    """Returns what the tests lack on this machine; `ENN_NEEDS_TABLES` makes that a failure."""
    from importlib.util import find_spec

    program = os.environ.get("ENN_EXECUTABLE") or str(Path(os.environ.get("ENN_BIN_DIR") or ROOT / "target" / "release") / "enn")
    lacks = [name for name in PACKAGES if find_spec(name) is None]
    lacks += [] if os.access(program, os.X_OK) else [program]
    if lacks and os.environ.get("ENN_NEEDS_TABLES"):
        raise RuntimeError(f"ENN_NEEDS_TABLES is set, and these are missing: {', '.join(lacks)}")
    os.environ["ENN_EXECUTABLE"] = program
    return f"missing: {', '.join(lacks)}" if lacks else None


MISSING = missing()


@unittest.skipIf(MISSING, MISSING)
class TableTest(unittest.TestCase):
    """A test with runs in a directory of its own, in which warnings about models that learn nothing are of no interest."""

    @classmethod
    def setUpClass(cls):
        os.environ["OMP_NUM_THREADS"] = "1"
        cls.folder = Path(tempfile.mkdtemp(prefix="enn-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        os.environ["ENN_RUNS"] = str(cls.folder / "runs")

    def setUp(self):
        self.enterContext(warnings.catch_warnings()) if sys.version_info >= (3, 11) else None
        warnings.simplefilter("ignore", RuntimeWarning)


def shop(rows: int = 240):
    """Returns a table with numbers, missing values, times, texts and an index."""
    import numpy
    import pandas

    random = numpy.random.default_rng(1)
    price = random.uniform(1, 9, rows)
    staff = random.integers(1, 9, rows)
    frame = pandas.DataFrame(
        {
            "day": pandas.date_range("2024-01-01", periods=rows, freq="D"),
            "city": random.choice(["Paris", "London", "New, York", 'Quo"te'], rows),
            "price": price,
            "staff": staff,
            "sales": 10 + 3 * staff - 2 * price,
        },
        index=[f"row {number}" for number in range(rows)],
    )
    frame.loc[frame.index[::17], "price"] = None
    return frame


def series(names=("A", "B"), hours: int = 24 * 30):
    """Returns two series of hours in a long table."""
    import numpy
    import pandas

    time = pandas.date_range("2024-01-01", periods=hours, freq="h")
    wave = 5 + 3 * numpy.sin(numpy.arange(hours) / 24 * 2 * numpy.pi)
    parts = [pandas.DataFrame({"site": name, "when": time, "load": wave + 2 * number}) for number, name in enumerate(names)]
    return pandas.concat(parts, ignore_index=True)
