#!/usr/bin/env python3
"""Draws docs/architecture.svg: the packages of the workspace, their modules, and who imports whom.

    python3 docs/architecture.py            # writes docs/architecture.svg
    python3 docs/architecture.py --check    # exits with 1 if the picture in the tree is not the one that this would write

Packages and their dependencies come from `cargo metadata`, imports from the sources. Only Python's standard library is needed.
"""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"

# Sizes in units of the picture, which is drawn narrow so that its words can be read on a telephone.
WIDTH = 460
MARGIN = 8
LANE = 11
FONT_NAME, FONT_MODULE, FONT_NOTE = 15, 13, 12
LINE, CHIP, CHIP_PAD, GAP = 21, 18, 5, 4
# Before the first module of a layer.
STEP = 11
PAD = 7
ROW_GAP = 9
GROUP_PAD, GROUP_TITLE = 6, 18
STROKE_MIN, STROKE_MAX = 1.2, 7.0

# Widths of Helvetica's characters in thousandths of the font size; every text is drawn at the width that follows from them.
NARROW = {"i": 222, "j": 222, "l": 222, "f": 278, "t": 278, "r": 333, " ": 278, "-": 333, ".": 278, "m": 833, "w": 722, "c": 500,
          "k": 500, "s": 500, "v": 500, "x": 500, "y": 500, "z": 500, ",": 278, ":": 278, "→": 1000, "›": 333, "I": 278}

# A colour for each package that others import: told apart on a light ground and on a dark one.
COLOURS = ["#2f81f7", "#d9730d", "#1a9c5b", "#c2409a", "#8a63d2", "#b08800", "#0e9aa7", "#d1453b", "#6b8e23", "#7a869a", "#a0522d",
           "#4b6bfb", "#e0529c", "#3a9188"]

STYLE = """
  .ground { fill: #ffffff } .group { fill: #f3f5f8; stroke: #d5dae1 } .box { fill: #ffffff; stroke: #8c96a3 }
  .chip { fill: #eef1f5; stroke: none } text { fill: #1f2328; font-family: Helvetica, Arial, "Liberation Sans", sans-serif }
  .note { fill: #59636e } .step { fill: none; stroke: #59636e; stroke-width: 1.6 } path.import { fill: none }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } .group { fill: #151b23; stroke: #2f3742 } .box { fill: #0d1117; stroke: #6e7884 }
    .chip { fill: #212830 } text { fill: #e6edf3 } .note { fill: #9198a1 } .step { stroke: #9198a1 }
  }
"""


class Package:
    """One package: where it is, what it is made of, and whom its files import."""

    def __init__(self, found):
        self.name = found["name"]
        self.path = Path(found["manifest_path"]).parent
        self.folder = self.path.relative_to(ROOT).as_posix()
        self.needs = {dependency["name"] for dependency in found["dependencies"]
                      if dependency.get("path") and dependency["kind"] != "dev"}
        self.targets = found["targets"]
        self.imports = {}
        self.layers = []

    @property
    def top(self):
        """The folder of the workspace that it belongs to."""
        return self.folder.split("/")[0]

    @property
    def is_leaf(self):
        return self.top in ("tests", "examples")

    def files(self):
        """Its sources: `src`, and for tests and examples everything."""
        place = self.path if self.is_leaf else self.path / "src"
        return sorted(path for path in place.rglob("*.rs") if self.is_leaf or not is_test(path.relative_to(place)))

    def module(self, path):
        """The first module of a file, "" for the root."""
        parts = path.relative_to(self.path / "src").parts
        name = parts[0].removesuffix(".rs")
        return "" if name in ("lib", "main") else name

    def modules(self):
        found = {self.module(path) for path in self.files()} - {"", "bin"}
        return sorted(found)


def is_test(path):
    return "tests" in path.parts or path.name in ("tests.rs", "fixture.rs") or path.name.endswith("_tests.rs")


def packages():
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--no-deps", "--offline", "--format-version", "1"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return [Package(found) for found in json.loads(done.stdout)["packages"]]


def code_of(path):
    """The text of a source without comments and without its own tests."""
    text = path.read_text(encoding="utf-8")
    text = re.split(r"^#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*mod \w+ \{", text, maxsplit=1, flags=re.M)[0]
    return re.sub(r"//[^\n]*", "", text)


def names_after(text, root):
    """The first names that follow `root::`, also in groups: `root::{a, b::c}` gives a and b."""
    found = set()
    for match in re.finditer(rf"\b{root}::(\w+|\{{)", text):
        if match[1] != "{":
            found.add(match[1])
            continue
        depth, begun = 1, True
        for word in re.finditer(r"[{},]|\w+", text[match.end():]):
            if word[0] == "{":
                depth += 1
            elif word[0] == "}":
                depth -= 1
                if depth == 0:
                    break
            elif word[0] == ",":
                begun = depth == 1
                continue
            elif begun:
                found.add(word[0])
            begun = False
    return found


def scan(package, names):
    """Fills in the files that import each other package, and the layers of the package's own modules."""
    root = package.path / "src" / "lib.rs"
    own = set() if package.is_leaf else set(package.modules())
    uses = {module: set() for module in own}
    # Names at the root of the package, which come from elsewhere: their packages and modules.
    shared = {}
    if root.exists():
        for line in re.findall(r"\buse ([a-z]\w*::[^;]+);", code_of(root)):
            owner = line.split("::")[0]
            shared.update((name, owner) for name in re.findall(r"\w+", line)[1:])
    for path in package.files():
        text = code_of(path)
        inside = names_after(text, "crate")
        others = {f"enn_{name}" for name in re.findall(r"\benn_(\w+)\b(?=::|;| as )", text)}
        behind = {shared[name] for name in inside if name in shared and name not in own}
        others |= behind
        for other in sorted(others & names):
            # A name in a text is no import.
            if other.replace("_", "-") in package.needs:
                package.imports.setdefault(other.replace("_", "-"), []).append(path)
        if not package.is_leaf:
            module = package.module(path)
            if module in uses:
                uses[module] |= (inside | behind) & own - {module}
    package.layers = layers(uses) if uses else [sorted(targets(package))]


def targets(package):
    """What stands in the box of a package without modules of interest: its tests, else its programs."""
    kinds = ("test",) if package.top == "tests" else ("bin", "example")
    return [target["name"] for target in package.targets if target["kind"][0] in kinds]


def layers(uses):
    """Modules by height, highest first: a module imports those of lower layers, and of its own where there is a circle."""
    circle = circles(uses)
    height = {}

    def of(name):
        key = circle[name]
        if key not in height:
            below = {other for member in key for other in uses[member]} - set(key)
            height[key] = 1 + max((of(other) for other in below), default=-1)
        return height[key]

    found = {}
    for name in uses:
        found.setdefault(of(name), []).append(name)
    return [sorted(found[level]) for level in sorted(found, reverse=True)]


def circles(uses):
    """The set of modules that each one reaches and is reached by."""
    reach = {name: closure(name, uses) for name in uses}
    return {name: tuple(sorted({name} | {other for other in reach[name] if name in reach[other]})) for name in uses}


def closure(name, uses):
    seen, rest = set(), [name]
    while rest:
        for other in uses[rest.pop()]:
            if other not in seen:
                seen.add(other)
                rest.append(other)
    return seen


def ordered(found):
    """All packages, importers above what they import, those of one folder together."""
    by_name = {package.name: package for package in found}
    importers = {name: {other.name for other in found if name in other.needs} for name in by_name}
    depth = {}

    def deep(name):
        if name not in depth:
            depth[name] = 1 + max((deep(other) for other in by_name[name].needs if other in by_name), default=-1)
        return depth[name]

    placed = []
    while len(placed) < len(found):
        done = {package.name for package in placed}
        ready = [package for package in found if package.name not in done and importers[package.name] <= done]
        last = placed[-1].top if placed else ""
        placed.append(min(ready, key=lambda one: (one.top != last, not one.is_leaf, one.top != "launcher", -deep(one.name), one.name)))
    return placed


def width_of(text, size):
    return sum(NARROW.get(one, 667 if one.isupper() else 556) for one in text) * size / 1000


def number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


def words(x, y, text, size, extra=""):
    length = number(width_of(text, size))
    return f'<text x="{number(x)}" y="{number(y)}" font-size="{size}" textLength="{length}" lengthAdjust="spacingAndGlyphs"{extra}>{text}</text>'


class Box:
    """A package with its place in the picture."""

    def __init__(self, package, width):
        self.package = package
        self.width = width
        self.chips = []
        self.steps = []
        x, y = PAD, PAD + FONT_NAME + 7
        for index, layer in enumerate(package.layers):
            for place, name in enumerate(layer):
                wide = width_of(name, FONT_MODULE) + 2 * CHIP_PAD
                step = STEP if index and place == 0 else 0
                if x > PAD and x + step + wide > width - PAD:
                    x, y = PAD, y + LINE
                if step:
                    self.steps.append((x, y))
                self.chips.append((x + step, y, wide, name))
                x += step + wide + GAP
        self.height = y + LINE + PAD - (LINE - CHIP)
        # Each line that leaves the box has a place of its own below its name.
        self.height = max(self.height, PAD + FONT_NAME + 10 + 8 * len(package.imports))
        self.y = 0.0

    def draw(self, x, colour):
        package = self.package
        wide, high = number(self.width), number(self.height)
        parts = [f'<rect class="box" x="{number(x)}" y="{number(self.y)}" width="{wide}" height="{high}" rx="5"/>']
        if colour:
            parts.append(f'<rect x="{number(x)}" y="{number(self.y)}" width="{wide}" height="4" rx="2" fill="{colour}"/>')
        title = self.y + PAD + FONT_NAME
        parts.append(words(x + PAD, title, package.name, FONT_NAME, ' font-weight="bold"'))
        note = f"{package.folder}/"
        left = x + self.width - PAD - width_of(note, FONT_NOTE)
        if left > x + PAD + width_of(package.name, FONT_NAME) * 1.1 + 8 and note.strip("/") != package.name.removeprefix("enn-"):
            parts.append(words(left, title, note, FONT_NOTE, ' class="note"'))
        for left, top in self.steps:
            parts.append(f'<path class="step" d="M{number(x + left + 1)} {number(self.y + top + 4)}l5 4.5l-5 4.5"/>')
        for left, top, wide, name in self.chips:
            parts.append(f'<rect class="chip" x="{number(x + left)}" y="{number(self.y + top)}" width="{number(wide)}" height="{CHIP - 1}" rx="3"/>')
            parts.append(words(x + left + CHIP_PAD, self.y + top + 13, name, FONT_MODULE))
        return parts


def lanes(boxes):
    """A lane for each imported package, beside the boxes: short ones inside, lanes that do not meet share a place."""
    rows = {box.package.name: row for row, box in enumerate(boxes)}
    spans = {}
    for box in boxes:
        for name in box.package.imports:
            first, last = spans.get(name, (rows[name], rows[name]))
            spans[name] = (min(first, rows[box.package.name]), last)
    places, found = [], {}
    for name, span in sorted(spans.items(), key=lambda item: (item[1][1] - item[1][0], item[0])):
        free = [index for index, taken in enumerate(places) if all(span[1] <= one[0] or span[0] >= one[1] for one in taken)]
        index = free[0] if free else len(places)
        if not free:
            places.append([])
        places[index].append(span)
        found[name] = index
    return found, len(places)


def stroke(count, most):
    return STROKE_MIN + (STROKE_MAX - STROKE_MIN) * math.sqrt(count / most)


def picture(found):
    names = {package.name.replace("-", "_") for package in found}
    for package in found:
        scan(package, names)
    order = ordered(found)
    inner = WIDTH - 2 * MARGIN - 2 * GROUP_PAD
    place, count = lanes([Box(package, inner) for package in order])
    gutter = LANE * count + 10
    boxes = [Box(package, inner - gutter) for package in order]
    left = MARGIN + GROUP_PAD
    right = left + inner - gutter
    edge = right + 6 + LANE / 2
    counts = [len(files) for box in boxes for files in box.package.imports.values()]
    most = max(counts)

    out, y = [], MARGIN + 4
    title = "Packages, their modules, and their imports"
    out.append(words(left, y + 14, title, FONT_NAME, ' font-weight="bold"'))
    y += 34
    notes = ["An arrow leads from a package to one that it imports. Its", "width shows how many source files import it:"]
    for line in notes:
        out.append(words(left, y, line, FONT_NOTE, ' class="note"'))
        y += 16
    x = left
    for sample in sorted({1, 10, most}):
        if sample <= most:
            out.append(f'<path class="import" stroke="#7a869a" stroke-width="{number(stroke(sample, most))}" d="M{number(x)} {number(y - 4)}h26"/>')
            out.append(words(x + 31, y, str(sample), FONT_NOTE, ' class="note"'))
            x += 40 + width_of(str(sample), FONT_NOTE) + 14
    y += 18
    notes = ["In a box, a module imports only modules behind a later › .", "Modules without › between them import each other only in a circle."]
    for line in notes:
        out.append(words(left, y, line, FONT_NOTE, ' class="note"'))
        y += 16
    y += 2

    groups, index = [], 0
    while index < len(boxes):
        top = boxes[index].package.top
        end = index
        while end < len(boxes) and boxes[end].package.top == top:
            end += 1
        is_group = end - index > 1
        begin = y
        if is_group:
            y += GROUP_TITLE + 4
        for box in boxes[index:end]:
            box.y = y
            y += box.height + ROW_GAP
        if is_group:
            groups.append((top, begin, y - ROW_GAP + GROUP_PAD - begin))
            y += GROUP_PAD
        index = end
    height = y + MARGIN - ROW_GAP + 6

    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(box.package.name for box in boxes if box.package.name in place)}
    shapes = []
    for top, begin, tall in groups:
        shapes.append(f'<rect class="group" x="{MARGIN}" y="{number(begin)}" width="{WIDTH - 2 * MARGIN}" height="{number(tall)}" rx="7"/>')
        shapes.append(words(left + 2, begin + 15, f"{top}/", FONT_NOTE, ' class="note" font-weight="bold"'))
    by_name = {box.package.name: box for box in boxes}
    lines = []
    for box in boxes:
        wanted = sorted(box.package.imports.items(), key=lambda item: (place[item[0]], item[0]))
        room = box.height - PAD - FONT_NAME - 10
        for index, (name, files) in enumerate(wanted):
            # The lane farthest away is left for from the lowest place: lines of one box do not cross each other.
            start = box.y + PAD + FONT_NAME + 8 + room * (index + 0.5) / len(wanted)
            at = edge + LANE * place[name]
            goal = by_name[name].y + PAD + FONT_NAME / 2 + 1
            wide = number(stroke(len(files), most))
            bend = 4
            path = (f"M{number(right)} {number(start)}H{number(at - bend)}q{bend} 0 {bend} {bend}V{number(goal - bend)}"
                    f"q0 {bend} {-bend} {bend}H{number(right + 5)}")
            told = f"{box.package.name} → {name}: {len(files)} {'file' if len(files) == 1 else 'files'}"
            lines.append((-len(files), f'<path class="import" stroke="{colours[name]}" stroke-width="{wide}" d="{path}"><title>{told}</title></path>'))
    shapes.extend(line for _, line in sorted(lines))
    for name in place:
        goal = by_name[name].y + PAD + FONT_NAME / 2 + 1
        shapes.append(f'<path fill="{colours[name]}" d="M{number(right + 0.5)} {number(goal)}l8 -5v10z"/>')
    for box in boxes:
        shapes.extend(box.draw(left, colours.get(box.package.name)))
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * 3 // 2}" height="{number(height * 1.5)}" '
            f'viewBox="0 0 {WIDTH} {number(height)}" role="img" aria-label="{title}">')
    ground = f'<rect class="ground" width="{WIDTH}" height="{number(height)}"/>'
    return "\n".join([head, "<!-- Drawn by docs/architecture.py. -->", f"<style>{STYLE}</style>", ground, *out, *shapes, "</svg>", ""])


def main():
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"]):
        sys.exit(f"error: {' '.join(arguments)} is unknown, expected nothing or --check")
    drawn = picture(packages())
    if not arguments:
        PICTURE.write_text(drawn, encoding="utf-8")
        return
    if not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != drawn:
        sys.exit("error: docs/architecture.svg does not show the packages as they are\nhint: python3 docs/architecture.py draws it")


if __name__ == "__main__":
    main()
