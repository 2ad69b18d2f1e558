"""The blocks of docs/python.md run, in order."""

import os
import re
import shutil
import unittest
import warnings

from tables_common import ROOT, TableTest, WEATHER


class Pages(TableTest):
    def run_blocks(self, blocks: "list[str]", name: str) -> dict:
        """Runs pieces of code one after another in one namespace, in a directory that has the weather's table."""
        shutil.copy(WEATHER, self.folder)
        before = os.getcwd()
        os.chdir(self.folder)
        names: dict = {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for number, block in enumerate(blocks):
                    exec(compile(block, f"{name}, block {number + 1}", "exec"), names)
        finally:
            os.chdir(before)
        return names

    def test_the_page(self):
        text = (ROOT / "docs" / "python.md").read_text()
        blocks = re.findall(r"(?ms)^```python\n(.*?)^```$", text)
        self.assertGreater(len(blocks), 6)
        names = self.run_blocks(blocks, "docs/python.md")
        self.assertEqual(list(names["tomorrow"].columns), ["temp"])


if __name__ == "__main__":
    unittest.main()
