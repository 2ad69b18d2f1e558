"""The notebook runs in a kernel of Jupyter: its progress is one line that is renewed, its report is drawn, and the stop button keeps the best."""

import os
import shutil
import signal
import threading
import time
import unittest
from importlib.util import find_spec
from unittest import mock

from tables_common import PYTHON_PATH, ROOT, TableTest, WEATHER

NOTEBOOK = ROOT / "examples" / "weather" / "weather.ipynb"
MISSING = [name for name in ("nbclient", "ipykernel") if find_spec(name) is None]
CELL_SECONDS_MAX = 300
TRAIN_UNTIL_STOPPED = """
import enn
from tables_common import shop
run = enn.train(shop(), "sales", epochs=100000, baselines="quick", workers=1)
"""


@unittest.skipIf(MISSING and not os.environ.get("ENN_NEEDS_TABLES"), f"missing: {', '.join(MISSING)}")
class Notebook(TableTest):
    def execute(self, notebook, beside=None):
        """Runs a notebook in the folder of this test; returns its cells of code. `beside` is called with the kernel while it runs."""
        import nbclient

        path = os.pathsep.join([PYTHON_PATH, str(ROOT / "python" / "tests"), os.environ.get("PYTHONPATH", "")])
        environment = {"PYTHONPATH": path, "ENN_RUNS": str(self.folder / "runs")}
        client = nbclient.NotebookClient(notebook, timeout=CELL_SECONDS_MAX, resources={"metadata": {"path": str(self.folder)}})
        with mock.patch.dict(os.environ, environment):
            client.km = client.create_kernel_manager()
            thread = threading.Thread(target=beside, args=(client.km,)) if beside else None
            if thread:
                thread.start()
            try:
                client.execute()
            finally:
                if thread:
                    thread.join()
        return [cell for cell in notebook.cells if cell.cell_type == "code"]

    def test_the_notebook_of_the_weather(self):
        import nbformat

        shutil.copy(WEATHER, self.folder)
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        self.assertTrue(all(cell.outputs == [] for cell in notebook.cells if cell.cell_type == "code"))
        by_source = {cell.source: cell.outputs for cell in self.execute(notebook)}
        outputs = [output for outputs in by_source.values() for output in outputs]
        self.assertEqual([output for output in outputs if output.get("name") == "stderr"], [])
        [trained] = [outputs for source, outputs in by_source.items() if "run = enn.train" in source]
        shown = [output for output in trained if output.output_type == "display_data"]
        self.assertEqual(len(shown), 1)
        self.assertRegex(shown[0].data["text/plain"], r"^5 of 5 epochs in [0-9.]+ s: train MAE .*, val MAE .*, test MAE ")
        self.assertIn("<iframe srcdoc=", by_source["run.report"][0].data["text/html"])
        [equal] = [outputs for source, outputs in by_source.items() if "enn.load(run.path)" in source]
        self.assertEqual(equal[0].data["text/plain"], "True")

    def test_the_stop_button(self):
        import nbformat

        def stop(kernel) -> None:
            until = time.monotonic() + CELL_SECONDS_MAX
            while time.monotonic() < until:
                journals = [path.read_bytes() for path in (self.folder / "runs").glob("*/events.jsonl")]
                if any(journal.count(b'"checkpoint_committed"') > 1 for journal in journals):
                    os.kill(kernel.provisioner.pid, signal.SIGINT)
                    return
                time.sleep(0.1)

        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        told = nbformat.v4.new_code_cell("print(run.stopped, run.epochs > 0, sorted(run.metrics), len(run.predict(shop())))")
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(TRAIN_UNTIL_STOPPED), told])
        trained, asked = self.execute(notebook, stop)
        self.assertRegex(trained.outputs[0].data["text/plain"], "^stopped after .* s; best: epoch ")
        self.assertEqual(asked.outputs[0].text, "True True ['baselines', 'val'] 240\n")


if __name__ == "__main__":
    unittest.main()
