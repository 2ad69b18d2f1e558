"""The process that keeps a model loaded: its answers are those of `enn predict` to the bit, and nothing is left of it."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from unittest import mock

from tables_common import PYTHON_PATH, QUICK, TableTest, series, shop

import enn
from enn import predictor

KILLED = """
import enn, os, signal, sys
from tables_common import shop
run = enn.load(sys.argv[1])
run.predict(shop())
print(run._keeper.predictor.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def is_alive(pid: int) -> bool:
    """Returns whether a process runs; one that has ended and is not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Predictors(TableTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.frame = shop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cls.trained = enn.train(cls.frame, "sales", loss="quantile", **QUICK)

    def setUp(self):
        super().setUp()
        self.run_here = enn.load(self.trained.path)
        self.addCleanup(self.run_here.close)

    def process(self, run=None):
        return (run or self.run_here)._keeper.predictor.process

    def wait_for_end(self, pid: int) -> None:
        until = time.monotonic() + 20
        while is_alive(pid):
            self.assertLess(time.monotonic(), until, "the predictor does not end")
            time.sleep(0.02)

    def test_answers_are_equal_to_the_bit(self):
        import pandas

        forecast = enn.train(series(), "load", time="when", series="site", horizon=24, **QUICK)
        large = pandas.concat([self.frame] * 40)
        for run, frame in ((self.run_here, self.frame), (self.run_here, self.frame.tail(1)), (self.run_here, large), (forecast, series())):
            warm = run.predict(frame)
            with mock.patch.object(predictor, "ROWS_MAX", -1):
                self.assertTrue(run.predict(frame).equals(warm))

    def test_one_process_answers_all_and_errors_do_not_end_it(self):
        self.run_here.predict(self.frame)
        pid = self.process().pid
        for _ in range(2):
            with self.assertRaisesRegex(enn.EnnError, '^the table: has no column "price"; it has "day", "city", "staff"$'):
                self.run_here.predict(self.frame.drop(columns="price"))
            self.assertEqual(len(self.run_here.predict(self.frame)), 240)
        out = self.run_here.predict(self.frame, out=self.folder / "again.csv")
        self.assertEqual(self.run_here.predict(self.frame, out=out).read_text().count("\n"), 241)
        self.assertEqual(self.process().pid, pid)

    def test_one_that_was_killed_is_replaced(self):
        self.run_here.predict(self.frame)
        os.kill(self.process().pid, signal.SIGKILL)
        self.process().wait()
        self.assertEqual(len(self.run_here.predict(self.frame)), 240)

    def test_its_worker_may_be_killed(self):
        self.run_here.predict(self.frame)
        children = Path(f"/proc/{self.process().pid}/task/{self.process().pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        answered = 0
        for _ in range(3):
            try:
                answered = len(self.run_here.predict(self.frame))
                break
            except enn.EnnError as error:
                self.assertIn("worker", error.message)
        self.assertEqual(answered, 240)

    def test_it_ends_when_it_is_no_longer_needed(self):
        run = enn.load(self.trained.path)
        with run:
            run.predict(self.frame)
            self.assertIsNone(run._keeper.predictor.idle)
            pid = self.process(run).pid
        self.assertFalse(is_alive(pid))
        run.predict(self.frame)
        pid = self.process(run).pid
        del run
        self.wait_for_end(pid)
        with mock.patch.object(self.run_here._keeper, "idle", 1):
            self.run_here.predict(self.frame)
            self.wait_for_end(self.process().pid)
            self.assertEqual(len(self.run_here.predict(self.frame)), 240)
        self.run_here.close()
        self.assertEqual([entry.name for entry in (self.trained.path / "predictions").glob(".stream*")], [])

    def test_it_ends_with_a_python_that_is_killed(self):
        environment = os.environ | {"PYTHONPATH": f"{PYTHON_PATH}{os.pathsep}{Path(__file__).parent}"}
        command = [sys.executable, "-c", KILLED, str(self.trained.path)]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, -signal.SIGKILL, told.stderr)
        self.wait_for_end(int(told.stdout))

    def test_what_a_killed_python_left_in_memory_is_removed(self):
        from enn import tables

        left = [Path(tables.MEMORY, f"{tables.OURS}{process}-{os.getpid()}") for process in (1 << 30, os.getpid(), (1 << 30) + 1)]
        for path in left:
            path.mkdir()
            self.addCleanup(path.rmdir) if path != left[0] else None
            os.utime(path, (0, 0) if path != left[2] else None)
        tables.sweep.cache_clear()
        self.run_here.predict(self.frame.head(2))
        self.assertEqual([path.exists() for path in left], [False, True, True])

    def test_few_are_kept(self):
        runs = [enn.load(self.trained.path) for _ in range(predictor.KEPT_MAX + 2)]
        for run in runs:
            run.predict(self.frame.head(3))
        alive = [is_alive(self.process(run).pid) for run in runs]
        self.assertEqual(alive, [False] * 2 + [True] * predictor.KEPT_MAX)
        self.assertEqual(len(runs[0].predict(self.frame)), 240)

    def test_threads_and_forks(self):
        expected = self.run_here.predict(self.frame)
        found = []
        threads = [threading.Thread(target=lambda: found.append(self.run_here.predict(self.frame).equals(expected))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [True] * 4)
        before = self.process().pid
        child = os.fork()
        if child == 0:
            is_own = False
            try:
                is_own = self.run_here.predict(self.frame).equals(expected) and self.process().pid != before
                self.run_here.close()
            finally:
                os._exit(0 if is_own else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(self.run_here.predict(self.frame).equals(expected))
        self.assertEqual(self.process().pid, before)

    def test_a_newer_checkpoint_is_used(self):
        run = enn.train(self.frame, "sales", exclude="day", **{**QUICK, "epochs": 1})
        before = run.predict(self.frame)
        enn.load(run.path).resume(epochs=3, progress=False)
        after = run.predict(self.frame)
        self.assertFalse(after.equals(before))
        self.assertTrue(enn.load(run.path).predict(self.frame).equals(after))

    def test_a_run_can_be_pickled(self):
        expected = self.run_here.predict(self.frame)
        again = pickle.loads(pickle.dumps(self.run_here))
        self.addCleanup(again.close)
        self.assertTrue(again.predict(self.frame).equals(expected))


class Events(TableTest):
    def test_the_lines_for_people_are_not_read(self):
        from enn.job import EventLines

        lines = EventLines()
        first = b'{"event":"events","version":1}\n{"event":"wa'
        self.assertEqual([event["event"] for event in lines.take(first)], ["events"])
        self.assertEqual(list(lines.take(b'rned","message":"a"}\n')), [{"event": "warned", "message": "a"}])
        for wrong, wanted in (
            (b"[ 0.1 s] trained\n", "expected an event"),
            (b'{"event":"events","version":2}\n', "of version 2, expected 1"),
            (b'{"event":"warned","message":""}\n', "of version none"),
            (b"x" * (2 << 20), "an event of more than"),
        ):
            with self.assertRaisesRegex(enn.EnnError, wanted):
                list(EventLines().take(wrong))

    def command(self, *arguments: str, stdin: bytes = b"") -> "tuple[subprocess.CompletedProcess, list[dict]]":
        read, write = os.pipe()
        program = os.environ["ENN_EXECUTABLE"]
        done = subprocess.run([program, *arguments, "--events", str(write)], pass_fds=(write,), input=stdin, capture_output=True, check=False)
        os.close(write)
        with open(read, "rb") as file:
            return done, [json.loads(line) for line in file]

    def test_a_program_reads_an_error(self):
        for arguments, code, wanted in (
            (("train", "nosuch.toml"), 2, "nosuch.toml"),
            (("train", "x.toml", "--nosuch"), 2, "unexpected argument '--nosuch'"),
            (("predict", "nosuch", "--requests"), 2, "nosuch"),
        ):
            done, events = self.command(*arguments)
            self.assertEqual((done.returncode, [event["event"] for event in events]), (code, ["events", "failed"]))
            self.assertIn(wanted, events[1]["message"])
            self.assertEqual(done.stderr, b"")
        told = subprocess.run([os.environ["ENN_EXECUTABLE"], "train", "x.toml", "--events", "99"], capture_output=True, check=False)
        self.assertIn(b"--events 99: there is no such descriptor", told.stderr)

    def test_a_request_that_cannot_be_read_is_refused(self):
        frame = shop(40)
        run = enn.train(frame, "sales", **QUICK)
        data = self.folder / "data.csv"
        frame.to_csv(data)
        good = {"request": 7, "data": [str(data)], "out": str(self.folder / "a.csv")}
        lines = [b"nonsense", json.dumps({**good, "more": 1}).encode(), json.dumps(good).encode(), json.dumps({**good, "request": 8}).encode()]
        done, events = self.command("predict", str(run.path), "--requests", stdin=b"\n".join(lines) + b"\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        told = [(event["event"], event.get("request")) for event in events if event["event"] in ("answered", "refused")]
        self.assertEqual(told, [("refused", None), ("refused", None), ("answered", 7), ("refused", 8)])
        self.assertIn("a.csv", events[-1]["message"])


if __name__ == "__main__":
    import unittest

    unittest.main()
