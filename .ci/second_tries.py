"""Lists the tests that passed only when they were tried again: python3 .ci/second_tries.py JUNIT [FILE...]

JUNIT is nextest's report; each FILE has one such test a line. Missing files say nothing. A test that is listed here often is wrong,
or what it tests is.
"""

import sys
import xml.etree.ElementTree as tree
from pathlib import Path


def of_junit(path):
    if not path.is_file():
        return []
    tried_again = (case for case in tree.parse(path).iter("testcase") if case.find("flakyFailure") is not None)
    return [f"{case.get('classname')} {case.get('name')}" for case in tried_again]


def main():
    junit, *files = map(Path, sys.argv[1:])
    names = of_junit(junit)
    for path in filter(Path.is_file, files):
        names += filter(None, path.read_text().splitlines())
    print(f"tests that needed a second try: {len(names)}")
    for name in names:
        print(f"  {name}")


if __name__ == "__main__":
    main()
