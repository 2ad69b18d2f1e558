"""Writes the figures of the benches into MEASURED.md (`make measured`), each with the machine it was measured on.

`measured.py` takes the results in target/bench, which the benches left, into tests/bench/results, and writes the rows of the page anew whose
benches have a result there. `measured.py --check` writes nothing and fails where the page is not what the results make of it.

A row is written anew where its table has the columns `bench`, `ours`, `peer`, `ratio`, `on`, and all the benches that its first cell
names between backticks before the colon have a result; `_8` behind `launch_first_line_2` is `launch_first_line_8`. What the cell says of them
stays. All other rows keep their text: nobody can measure them where the results come from.
"""

import json
import math
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE / "MEASURED.md"
RESULTS = HERE / "results"
NEW = HERE.parents[1] / "target" / "bench"
COLUMNS = ["bench", "ours", "peer", "ratio", "on"]
# What a result must say of its machine.
FACTS = ("processor", "cores", "memory_gb", "load", "date")
# Units in which a number below 1 is better told by the next smaller one.
SMALLER = {"s": ("ms", 1e3), "ms": ("µs", 1e3), "GB": ("MB", 1e3)}
# Other words for a unit.
CALLED = {"us": "µs"}


class Wrong(Exception):
    """Something is not as it must be; the sentence says what."""


def number(value: float) -> str:
    """With three digits that count, and commas."""
    if abs(value) < 100:
        return f"{value:.3g}"
    return f"{round(value, 2 - math.floor(math.log10(abs(value)))):,.0f}"


def scaled(value: float, unit: str) -> tuple[float, str]:
    """A number in a unit that makes it readable."""
    unit = CALLED.get(unit, unit)
    while 0 < abs(value) < 1 and unit in SMALLER:
        unit, factor = SMALLER[unit]
        value *= factor
    return value, unit


def amounts(values: list[float], unit: str) -> str:
    """Numbers with their unit, which is told once where it is the same."""
    found = [scaled(value, unit) for value in values]
    units = {unit for _, unit in found}
    if len(units) == 1:
        return f"{', '.join(number(value) for value, _ in found)} {units.pop()}"
    return ", ".join(f"{number(value)} {unit}" for value, unit in found)


def names(cell: str) -> list[str]:
    """The benches that a first cell names, before its colon."""
    found: list[str] = []
    for name in re.findall(r"`([a-z0-9_.]+)`", cell.split(":")[0]):
        if name.startswith("_") and found:
            parts = name.count("_")
            found.append(found[0].rsplit("_", parts)[0] + name)
        else:
            found.append(name)
    return found


def machine(found: dict) -> str:
    """Where and when a result was measured."""
    facts = found["machine"]
    gpus = f", {facts['gpus']}" if facts.get("gpus") else ""
    where = f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gb']} GB{gpus}"
    return f"{where}; load {facts['load']} before; {facts['date']}, {found['commit'] or 'no revision'}"


def once(texts: list[str]) -> str:
    """Texts with commas between them; one where all are the same."""
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def row(first: str, found: list[dict]) -> str:
    """A row of the page."""
    unit = found[0]["unit"]
    if any(one["unit"] != unit for one in found):
        raise Wrong(f"{PAGE}: the benches {', '.join(one['name'] for one in found)} have several units\nhint: give them rows of their own")
    ours = amounts([one["ours"] for one in found], unit)
    peers = amounts([one["peer"] for one in found], unit)
    called = once([one["peer_name"] for one in found])
    ratios = ["" if one["ratio"] is None else number(one["ratio"]) for one in found]
    below = any(one["limit"] is not None and one["ratio"] is not None and one["ratio"] < one["limit"] for one in found)
    limit = f" (**below the limit of {once([number(one['limit']) for one in found if one['limit'] is not None])}**)" if below else ""
    places = once([machine(one) for one in found])
    return f"| {first} | {ours} | {peers}; {called} | {', '.join(ratios)}{limit} | {places} |"


def cells(line: str) -> list[str]:
    """The cells of a row."""
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def written(page: str, results: dict[str, dict]) -> str:
    """The page with these results."""
    lines, told = [], False
    for line in page.splitlines():
        if not line.startswith("|"):
            told = False
        elif cells(line) == COLUMNS:
            told = True
        elif told and not line.startswith("|--"):
            first = cells(line)[0]
            wanted = names(first)
            if wanted and all(name in results for name in wanted):
                line = row(first, [results[name] for name in wanted])
        lines.append(line)
    return "\n".join(lines) + "\n"


def lacks(result: object) -> str:
    """What a result does not say and must; empty where it says all."""
    if not isinstance(result, dict):
        return "result"
    facts = result.get("machine")
    missing = [key for key in ("name", "unit", "ours", "peer", "peer_name", "ratio", "limit", "commit") if key not in result]
    missing += [f"machine.{key}" for key in FACTS if not isinstance(facts, dict) or key not in facts]
    return ", ".join(missing)


def read(folder: Path) -> dict[str, dict]:
    """The committed results by their names."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if missing := lacks(result):
            raise Wrong(f"{path}: it has no {missing}\nhint: run the bench again, then make measured")
        found[result["name"]] = result
    return found


def take() -> None:
    """Copies what the benches left to the committed results."""
    RESULTS.mkdir(exist_ok=True)
    for path in sorted(NEW.glob("*.json")):
        if missing := lacks(json.loads(path.read_text())):
            print(f"{path} is left out: it has no {missing}; run its bench again", file=sys.stderr)
        else:
            shutil.copyfile(path, RESULTS / path.name)


def main() -> None:
    try:
        if sys.argv[1:] == ["--check"]:
            page = PAGE.read_text()
            if written(page, read(RESULTS)) != page:
                raise Wrong(f"{PAGE}: it is not what {RESULTS} makes of it\nhint: make measured")
            return
        if sys.argv[1:]:
            raise Wrong(f"{sys.argv[1]} is not known, expected nothing or --check")
        take()
        PAGE.write_text(written(PAGE.read_text(), read(RESULTS)))
    except Wrong as wrong:
        sys.exit(f"error: {wrong}")


if __name__ == "__main__":
    main()
