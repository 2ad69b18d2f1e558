"""The blocks of Python in the pages run, in order.

A comment `<!-- not run: REASON -->` in front of a block says why it does not run; tests/src/blocks.rs in the root of the repository lists the
comments. docs/python.md is the page with most blocks.
"""

import os
import re
import shutil
import unittest
import warnings

from tables_common import ROOT, TableTest, WEATHER

FOLDERS = ["docs", "python", "launcher", "worker", "examples", "tests"]
BLOCK = re.compile(r"(?ms)((?:^<!--[^\n]*-->\n|^\n)*)^```python\n(.*?)^```$")


def pages():
    """Paths and blocks of the pages that have blocks which run."""
    found = {}
    for path in [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md")))]:
        blocks = [code for comments, code in BLOCK.findall(path.read_text()) if "<!-- not run: " not in comments]
        if blocks and "site-packages" not in path.parts:
            found[path] = blocks
    return found


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
                # scikit-learn says so of a score that is no number.
                warnings.filterwarnings("error", r"(?s).*(Scoring|fits) failed")
                for number, block in enumerate(blocks):
                    exec(compile(block, f"{name}, block {number + 1}", "exec"), names)
        finally:
            os.chdir(before)
        return names

    def test_the_pages(self):
        found = pages()
        page = ROOT / "docs" / "python.md"
        self.assertGreater(len(found[page]), 6)
        for path, blocks in found.items():
            with self.subTest(page=str(path.relative_to(ROOT))):
                names = self.run_blocks(blocks, str(path.relative_to(ROOT)))
                if path == page:
                    self.assertEqual(list(names["tomorrow"].columns), ["temp"])


if __name__ == "__main__":
    unittest.main()
