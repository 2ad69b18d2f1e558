"""`enn.train` and `Run.predict`: tables of all kinds come back as they went in, and errors name what is wrong."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
import traceback
import unittest
import warnings
from pathlib import Path

from tables_common import PYTHON_PATH, QUICK, TableTest, WEATHER, series, shop

import enn

STOPPED = """
import enn, signal, sys
# A shell ignores SIGINT in what it starts in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
from tables_common import shop
frame = shop()
print("begins", flush=True)
run = enn.train(frame, "sales", epochs=100000, baselines="quick", workers=1, progress=sys.argv[1] == "shown")
print("stopped", run.stopped, run.epochs > 0, sorted(run.metrics), len(run.predict(frame)), flush=True)
"""


class Tables(TableTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.frame = shop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cls.run_of_numbers = enn.train(cls.frame, target="sales", loss="quantile", **QUICK)
            cls.run_of_classes = enn.train(cls.frame, target="city", **QUICK)

    def test_pandas(self):
        answers = self.run_of_numbers.predict(self.frame.iloc[5:9])
        self.assertEqual(list(answers.index), ["row 5", "row 6", "row 7", "row 8"])
        self.assertEqual(list(answers.columns), ["sales", "sales@0.1", "sales@0.9"])
        self.assertEqual(set(map(str, answers.dtypes)), {"float64"})
        self.assertLess((answers["sales"] - self.frame["sales"].iloc[5:9]).abs().max(), 3)

    def test_the_row_decides_and_not_its_place(self):
        import numpy

        whole = self.run_of_numbers.predict(self.frame)
        shuffled = self.run_of_numbers.predict(self.frame.sample(frac=1, random_state=3))
        numpy.testing.assert_allclose(shuffled.loc[whole.index].to_numpy(), whole.to_numpy(), atol=1e-3)

    def test_polars_arrow_and_dictionaries(self):
        import polars
        import pyarrow

        expected = self.run_of_numbers.predict(self.frame.head(4))["sales"].tolist()
        frame = polars.from_pandas(self.frame.head(4))
        for table in (frame, frame.lazy()):
            answers = self.run_of_numbers.predict(table)
            self.assertIsInstance(answers, polars.DataFrame)
            self.assertEqual(answers["sales"].to_list(), expected)
        table = pyarrow.Table.from_pandas(self.frame.head(4))
        for given in (table, table.to_batches()[0], {name: table.column(name) for name in table.column_names}):
            answers = self.run_of_numbers.predict(given)
            self.assertIsInstance(answers, pyarrow.Table)
            self.assertEqual(answers.column("sales").to_pylist(), expected)

    def test_files(self):
        import pyarrow
        import pyarrow.parquet

        path = self.folder / "shop.csv"
        self.frame.to_csv(path, index=False)
        run = enn.train(path, target="city", **QUICK)
        self.assertEqual(run.predict(path).column_names[0], "city")
        parquet = self.folder / "shop.parquet"
        self.frame.to_parquet(parquet)
        run = enn.train(str(parquet), "sales", **QUICK)
        self.assertEqual(len(run.predict([parquet, parquet])), 2 * len(self.frame))
        out = run.predict(parquet, out=self.folder / "answers.parquet")
        self.assertEqual(pyarrow.parquet.read_table(out).column_names, ["row_id", "sales", "failed"])

    def test_arrays(self):
        import numpy

        X = numpy.random.default_rng(2).normal(size=(120, 3))
        X[4, 1] = numpy.nan
        table = numpy.column_stack([X, X.sum(axis=1), X[:, 0]])
        one = enn.train(table[:, :4], "x3", **QUICK).predict(X[:7])
        self.assertEqual((one.shape, one.dtype), ((7,), numpy.float64))
        two = enn.train(table, ["x3", "x4"], **QUICK).predict(X[:7])
        self.assertEqual(two.shape, (7, 2))

    def test_classes_keep_their_type(self):
        import pandas
        import polars

        answers = self.run_of_classes.predict(self.frame.head(3))
        self.assertEqual(list(answers.columns)[0], "city")
        self.assertEqual(sorted(answers.columns[1:]), sorted(f"city={name}" for name in set(self.frame["city"])))
        self.assertAlmostEqual(float(answers.iloc[0, 1:].astype(float).sum()), 1, places=5)
        frame = self.frame.assign(
            ordered=pandas.Categorical(self.frame["city"], ["never", "Paris", "London", "New, York", 'Quo"te'], ordered=True),
            truth=self.frame["sales"] > 20,
            number=self.frame["staff"].astype("Int64") * 10,
        )
        for target in ("ordered", "truth", "number"):
            run = enn.train(frame, target, features=["price", "sales"], task="classification", **QUICK)
            answers = enn.load(run.path).predict(frame.tail(5))
            self.assertEqual(answers[target].dtype, frame[target].dtype)
            self.assertLessEqual(set(answers[target]), set(frame[target]))
        kinds = polars.Enum(["Paris", "London", "New, York", 'Quo"te'])
        coloured = polars.from_pandas(self.frame).with_columns(polars.col("city").cast(kinds))
        self.assertEqual(enn.train(coloured, "city", **QUICK).predict(coloured.head(2)).schema["city"], kinds)

    def test_targets_keep_their_type(self):
        sales = self.frame["sales"]
        frame = self.frame.assign(single=sales.astype("float32"), nullable=sales.astype("Float64"), arrow=sales.astype("double[pyarrow]"))
        targets = ["single", "nullable", "arrow", "staff"]
        answers = enn.train(frame, targets, features=["price", "sales"], **QUICK).predict(frame.head(2))
        self.assertEqual([str(kind) for kind in answers.dtypes], ["float32", "Float64", "double[pyarrow]", "float64"])

    def test_many_kinds_of_columns(self):
        import pandas

        frame = self.frame.assign(
            wait=pandas.to_timedelta(self.frame["price"], unit="h"),
            month=self.frame["day"].dt.to_period("M"),
            zoned=self.frame["day"].dt.tz_localize("Europe/Paris"),
            tags=[["a", "b"], ["b"]] * (len(self.frame) // 2),
            nothing=None,
            nullable=self.frame["staff"].astype("Int8").mask(self.frame["staff"] > 6),
        )
        run = enn.train(frame, "sales", categories=["staff"], time="zoned", **QUICK)
        self.assertEqual(len(run.predict(frame.drop(columns="sales").tail(3))), 3)

    def test_rows_without_inputs_have_no_prediction(self):
        frame = self.frame[["price", "staff"]].head(3).astype("Float64")
        frame.iloc[1] = None
        run = enn.train(self.frame, "sales", features=["price", "staff"], **QUICK)
        with self.assertWarnsRegex(RuntimeWarning, "1 of 3 rows have no prediction") as caught:
            answers = run.predict(frame)
        self.assertEqual((caught.filename, len(caught.warnings)), (__file__, 1))
        self.assertEqual(answers["sales"].isna().tolist(), [False, True, False])

    def test_a_run_tells_of_itself(self):
        run = enn.load(self.run_of_numbers.path)
        self.assertIn("mae", run.metrics["test"])
        self.assertIn("cell_mean", run.metrics["baselines"])
        self.assertFalse(run.stopped)
        self.assertEqual(run.epochs, 2)
        self.assertIn("ENN", str(run.report))
        self.assertRegex(run.report._repr_html_(), r'^<iframe srcdoc="&lt;!DOCTYPE html&gt;(?s:.*)</iframe>$')
        self.assertRegex(repr(run), r"^<enn.Run sales-\S+: val MAE .*, test MAE .*>$")
        self.assertEqual(enn.load(run.name).path, run.path)

    def test_texts_that_look_like_missing_cells_are_values(self):
        import numpy

        country = numpy.where(self.frame["city"] == "Paris", "NA", "None")
        frame = self.frame.assign(country=country, code=self.frame["city"].where(self.frame["staff"] > 2).astype("category"))
        answers = enn.train(frame, "country", features=["price", "code", "city"], **QUICK).predict(frame)
        self.assertEqual(list(answers.columns[1:]), ["country=None", "country=NA"])
        self.assertGreater((answers["country"] == country).mean(), 0.9)

    def test_a_text_that_means_nothing_in_text_files_only(self):
        import polars
        import pyarrow
        import pyarrow.feather

        frame = self.frame[["price", "sales"]].assign(country=["NA", "DE", "FR"] * 80).reset_index(drop=True)
        frame.to_parquet(self.folder / "na.parquet")
        frame.to_csv(self.folder / "na.csv", index=False)
        pyarrow.feather.write_feather(frame, self.folder / "na.arrow")
        table = pyarrow.Table.from_pandas(frame)
        given = (frame, polars.from_pandas(frame), table, *(self.folder / name for name in ("na.parquet", "na.arrow")))
        for source in given:
            answers = enn.train(source, "country", **QUICK).predict(table)
            self.assertEqual(sorted(answers.column_names[1:]), ["country=DE", "country=FR", "country=NA"], str(source)[:80])
        answers = enn.train(self.folder / "na.csv", "country", **QUICK).predict(table)
        self.assertEqual(sorted(answers.column_names[1:]), ["country=DE", "country=FR"])

    def test_more_epochs(self):
        run = enn.train(self.frame, "sales", exclude="day", **{**QUICK, "epochs": 1})
        before = run.predict(self.frame)
        self.assertIs(run.resume(epochs=3, progress=False), run)
        self.assertEqual((run.epochs, run.stopped), (3, False))
        self.assertFalse(run.predict(self.frame).equals(before))

    def test_what_cannot_be_learned_from_is_refused_unless_the_task_is_named(self):
        for frame, wanted in (
            (self.frame.assign(sales=3.0), '^the target "sales" is 3 in all training rows'),
            (self.frame.head(1), "^the training has 1 row, from which nothing can be learned"),
        ):
            with self.assertRaisesRegex(enn.EnnError, '^target "sales": it is always .*: there is nothing to learn'):
                enn.train(frame, "sales", **QUICK)
            with self.assertWarnsRegex(RuntimeWarning, wanted):
                enn.train(frame, "sales", features=["price", "staff"], task="regression", **QUICK)

    def test_the_command_line_makes_the_same_configuration(self):
        import json

        import pandas

        frame = self.frame.assign(
            key=[f"k{number}" for number in range(len(self.frame))],
            code=[f"{number % 7:03}" for number in range(len(self.frame))],
            same=1,
            twice=self.frame["sales"] * 2 + 1,
            flag=(self.frame["price"] > 5).astype(int),
            level=self.frame["staff"] % 4,
            half=(self.frame["price"] > 5) * 0.5,
        ).reset_index(drop=True)
        parquet, text = self.folder / "same.parquet", self.folder / "same.csv"
        frame.to_parquet(parquet)
        frame.to_csv(text, index=False)

        def layout(directory) -> dict:
            data = json.loads((Path(directory) / "run.json").read_text())["data"]
            return {key: value for key, value in data.items() if key != "files"}

        cases = [{"target": name} for name in ("sales", "city", "flag", "level", "half", "code")]
        cases += [{"target": "sales", "time": "day"}, {"target": "flag", "task": "regression"}]
        for case in cases:
            runs = []
            for path in (parquet, text):
                told = subprocess.run(
                    [os.environ["ENN_EXECUTABLE"], "train", path, *(f"--{key}={value}" for key, value in case.items()), "--set", "train.epochs=1"]
                    + ["--set", "cluster.nproc_per_node=1", "--baselines", "quick", "--runs-dir", self.folder / "typed", "--events", "1", "--quiet"],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                typed = layout(next(event["dir"] for event in map(json.loads, told.stdout.splitlines()) if event["event"] == "run_started"))
                runs.append(typed)
                self.assertEqual(layout(enn.train(path, **case, **{**QUICK, "epochs": 1}).path), typed, (path, case))
            memory = layout(enn.train(pandas.read_parquet(parquet), **case, **{**QUICK, "epochs": 1}).path)
            self.assertEqual(memory, runs[0], case)

    def test_settings_reach_the_configuration(self):
        import json

        run = enn.train(
            self.frame,
            "sales",
            seed=5,
            name="my shop",
            val=0.2,
            group="city",
            weight="staff",
            ema=0.5,
            model={"dropout": 0.0},
            data={"units": "EUR", "split": {"test": 0.1}},
            cluster={"max_restarts": 1},
            **QUICK,
        )
        self.assertTrue(run.name.startswith("my-shop-"))
        config = json.loads((run.path / "run.json").read_text())
        self.assertEqual((config["seed"], config["train"]["ema"], config["model"]["dropout"], config["data"]["units"]), (5, 0.5, 0, "EUR"))
        self.assertEqual(config["data"]["split"], {"kind": "group", "val": 0.2, "test": 0.1, "seed": 5, "column": "city"})

    def test_a_configuration(self):
        toml = WEATHER.with_name("weather.toml")
        run = enn.train(toml, **{**QUICK, "epochs": 1})
        past = run.predict(WEATHER, past=True).to_pandas()
        import pandas

        known = pandas.read_csv(WEATHER, parse_dates=["time_hour"])[["origin", "time_hour", "temp"]]
        both = past.merge(known, on=["origin", "time_hour"], suffixes=("", "_true"))
        self.assertGreater(len(both), 20_000)
        self.assertLess((both["temp"] - both["temp_true"]).abs().mean(), 4)


class Forecasts(TableTest):
    def test_series(self):
        frame = series()
        run = enn.train(frame, "load", time="when", series="site", horizon=24, **QUICK)
        answers = run.predict(frame)
        self.assertEqual(answers["site"].tolist(), ["A"] * 24 + ["B"] * 24)
        self.assertEqual(dict(answers.dtypes), dict(frame.dtypes))
        self.assertEqual(str(answers["when"].iloc[0]), "2024-01-31 00:00:00")
        both = run.predict(frame, past=True).merge(frame, on=["site", "when"], suffixes=("", "_true"))
        self.assertEqual(len(both), 2 * 24 * 29)
        self.assertLess((both["load"] - both["load_true"]).abs().mean(), 0.1)
        within = run.predict(frame[frame["when"] < "2024-01-20 10:00"])
        self.assertEqual((str(within["when"].min()), len(within)), ("2024-01-20 10:00:00", 2 * (14 + 24)))
        self.assertEqual(run.predict(frame, past=True).shape, (2 * 24 * 30, 3))

    def test_one_series_with_a_zone(self):
        frame = series(["A"]).drop(columns="site")
        frame["when"] = frame["when"].dt.tz_localize("UTC").dt.tz_convert("America/New_York")
        answers = enn.train(frame, "load", time="when", horizon=12, step="1h", history=2, loss="quantile", **QUICK).predict(frame)
        self.assertEqual(list(answers.columns), ["when", "load", "load@0.1", "load@0.9"])
        self.assertEqual(answers["when"].dtype, frame["when"].dtype)
        self.assertEqual(len(answers), 12)

    def test_series_with_dots_in_their_names(self):
        frame = series(["A.1", "A.2", "."])
        answers = enn.train(frame, "load", time="when", series="site", horizon=24, **QUICK).predict(frame)
        self.assertEqual(answers["site"].drop_duplicates().tolist(), [".", "A.1", "A.2"])

    def test_running_numbers(self):
        import numpy
        import pandas

        frame = pandas.DataFrame({"month": numpy.arange(120), "y": numpy.sin(numpy.arange(120))})
        answers = enn.train(frame, "y", time="month", horizon=6, **QUICK).predict(frame)
        self.assertEqual(answers["month"].tolist()[:2], [120, 121])

    def test_what_is_missing_is_named(self):
        frame = series()
        for settings, wanted in (
            ({"horizon": 24}, "needs the column of times"),
            ({"series": "site"}, "series belongs to a forecast"),
            ({"time": "when", "group": "site"}, "time and group are given"),
            ({"horizon": 24, "time": "when", "series": "site", "weight": "load"}, "weight does not apply to a forecast"),
            ({"horizon": 24, "time": "wen"}, 'no column "wen" .did you mean "when"'),
            ({"horizon": 24, "time": "when", "series": "site", "step": 7}, "step"),
        ):
            with self.assertRaisesRegex(enn.EnnError, wanted):
                enn.train(frame, "load", **settings, **QUICK)


class Errors(TableTest):
    def refused(self, wanted: str, *positional, **named) -> enn.EnnError:
        with self.assertRaisesRegex(enn.EnnError, wanted) as caught:
            enn.train(*positional, **{**QUICK, **named})
        return caught.exception

    def test_columns_and_settings(self):
        frame = shop(40)
        self.refused('target: the table has no column "slaes" .did you mean "sales"', frame, "slaes")
        self.refused('exclude: the table has no column "x"', frame, "sales", exclude="x")
        self.refused('exclude: column "sales" has another role', frame, "sales", exclude=["sales"])
        self.refused('features: the table has no column "stuff" .did you mean "staff"', frame, "sales", features=[{"column": "stuff", "kind": "index"}])
        self.refused("no target is named", frame)
        self.refused("train.epocs: unknown key .did you mean `epochs`", frame, "sales", epocs=3)
        error = self.refused("^train.loss: unknown value", frame, "sales", loss="huberr")
        self.assertEqual(error.code, 2)
        self.refused("nofile.csv", "nofile.csv", "sales")
        self.refused("the table is a int", 3, "sales")
        self.refused("several columns of one name: a", frame.set_axis(list("aabcd"), axis=1), "a")
        self.refused('column "odd" holds values of different kinds: int, str', frame.assign(odd=[1, "a"] * 20), "sales")
        self.refused('column "odd" holds', frame.assign(odd=[{"a": 1}] * 40), "sales", features=["odd"])
        enn.train(frame.assign(odd=[{"a": 1}] * 40), "sales", **QUICK)
        odd = frame.assign(odd=[{"a": 1}] * 40, mixed=[1, "a"] * 20)
        enn.train(odd, "sales", exclude=["odd", "mixed"], **QUICK).predict(odd)
        enn.train(odd, "sales", features=["price", "staff"], **QUICK).predict(odd)

    def test_a_program_that_is_killed_or_says_nothing(self):
        from unittest import mock

        for line, wanted in (("kill -9 $$", "^enn was ended by SIGKILL$"), ("exit 7", "^enn ended with code 7 and said nothing$"), ("echo odd >&2; exit 1", "^odd$")):
            program = self.folder / "fake-enn"
            program.write_text(f"#!/bin/sh\n{line}\n")
            program.chmod(0o755)
            with mock.patch.dict(os.environ, {"ENN_EXECUTABLE": str(program)}):
                self.refused(wanted, shop(40), "sales")

    def test_an_index_is_no_column(self):
        error = self.refused('time: the table has no column "day"', shop(40).set_index("day"), "sales", time="day")
        self.assertIn("reset_index", error.hint)

    def test_an_error_is_raised_and_not_shown(self):
        import contextlib
        import io

        for settings, wanted in (({"baselines": "foo"}, "invalid value 'foo'"), ({"epocs": 1}, "train.epocs: unknown key")):
            with contextlib.redirect_stderr(io.StringIO()) as shown, self.assertRaisesRegex(enn.EnnError, wanted):
                enn.train(shop(40), "sales", progress=True, **settings)
            self.assertNotIn(wanted, shown.getvalue())

    def test_a_prediction_without_a_column(self):
        frame = shop(40)
        run = enn.train(frame, "sales", **QUICK)
        with self.assertRaisesRegex(enn.EnnError, '^the table: has no column "price"; it has "day", "city", "staff"$'):
            run.predict(frame.drop(columns="price"))

    def test_no_stack_of_the_package(self):
        try:
            enn.train(shop(40), "sales", epocs=3)
        except enn.EnnError as error:
            self.assertEqual(len(traceback.extract_tb(error.__traceback__)), 2)
            self.assertTrue(error.__suppress_context__)

    def test_a_run_that_is_not_there(self):
        with self.assertRaisesRegex(enn.EnnError, "^nosuch is no run: .*run.json"):
            enn.load("nosuch")

    def test_where_the_program_is_looked_for(self):
        script = "import enn\ntry: enn.train({'a': [1], 'b': [2]}, 'a')\nexcept enn.EnnError as error: print(error)"
        for given, wanted in (("", "no directory on PATH has it"), ("", "hint: build it: make build, or set ENN_EXECUTABLE"), ("/nosuch/enn", "ENN_EXECUTABLE is /nosuch/enn")):
            environment = {"PYTHONPATH": PYTHON_PATH, "PATH": "/nosuch", "ENN_EXECUTABLE": given}
            told = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
            self.assertIn(wanted, told.stdout, told.stderr)


class Interrupts(TableTest):
    def command(self, shown: str) -> "list[str]":
        return [sys.executable, "-c", STOPPED, shown]

    def environment(self) -> dict:
        return os.environ | {"PYTHONPATH": f"{PYTHON_PATH}{os.pathsep}{Path(__file__).parent}", "ENN_RUNS": str(self.folder / "stopped")}

    def wait_for_epochs(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if any(b"checkpoint_committed" in journal.read_bytes() for journal in (self.folder / "stopped").glob("*/events.jsonl")):
                return
            time.sleep(0.1)
        self.fail("no checkpoint within a minute")

    def tearDown(self):
        import shutil

        shutil.rmtree(self.folder / "stopped", ignore_errors=True)

    def test_ctrl_c_keeps_the_best(self):
        python = subprocess.Popen(self.command("quiet"), env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.wait_for_epochs()
        python.send_signal(signal.SIGINT)
        told, errors = python.communicate(timeout=60)
        self.assertIn("stopped True True ['baselines', 'val'] 240", told, errors)

    def test_ctrl_c_on_a_terminal(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(sys.executable, self.command("shown"), self.environment())
        told = b""
        sent = False
        until = time.monotonic() + 90
        while time.monotonic() < until:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    told += os.read(terminal, 1 << 16)
                except OSError:
                    break
            if not sent and any(b"checkpoint_committed" in journal.read_bytes() for journal in (self.folder / "stopped").glob("*/events.jsonl")):
                os.write(terminal, b"\x03")
                sent = True
        if time.monotonic() >= until:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
        text = told.decode(errors="replace")
        self.assertIn("\x1b[", text)
        self.assertIn("SIGINT: finishing the step and writing a checkpoint", text)
        self.assertIn("stopped True True ['baselines', 'val'] 240", text)

    def test_a_killed_python_ends_the_run(self):
        python = subprocess.Popen(self.command("quiet"), env=self.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_for_epochs()
        python.kill()
        python.wait()
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if any(b'"run_ended"' in journal.read_bytes() for journal in (self.folder / "stopped").glob("*/events.jsonl")):
                return
            time.sleep(0.1)
        self.fail("the run goes on without its Python")


if __name__ == "__main__":
    unittest.main()
