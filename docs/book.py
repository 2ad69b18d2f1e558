"""Makes one book of all pages, with mdBook: python3 docs/book.py MDBOOK OUT

The pages stay where they are, beside the code. This copies those that docs/SUMMARY.md lists into a folder, each at the path that it has in
the repository, so that links between pages stay as they are. Files that pages link to are copied, too; a link to a folder becomes one to its
README.md, or to a list of its files. mdBook makes HTML of the copies. Then every link of the book is followed: one that leads nowhere is an
error. Nothing in the book needs a network.
"""

import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
SUMMARY = ROOT / "docs" / "SUMMARY.md"
CONFIG = """[book]
title = "ENN"
language = "en"
src = "src"

[output.html]
no-section-label = true
smart-punctuation = false

[output.html.playground]
runnable = false

[output.html.search]
limit-results = 40
use-boolean-and = true
"""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
# Files of a folder that a link leads to.
LISTED_MAX = 60


def relative(path, folder):
    return pathlib.PurePath(os.path.relpath(path, folder)).as_posix()


def prose(text):
    """Pieces of a page, with whether each is prose: code between fences and indented lines are none."""
    pieces = re.split(r"(^```.*?^```|^    [^\n]*)", text, flags=re.M | re.S)
    return [(piece, index % 2 == 0) for index, piece in enumerate(pieces)]


def in_book(name):
    """The place of a page in the book: the first page of a folder has the name that HTML gives it."""
    return name.with_name("index.md") if name.name == "README.md" else name


class Book:
    def __init__(self, source):
        self.source = source
        self.pages = {}
        self.files = set()

    def summary(self):
        text = SUMMARY.read_text()
        for target in LINK.findall(text):
            path = (SUMMARY.parent / target[1]).resolve()
            if not path.is_file():
                sys.exit(f"error: docs/SUMMARY.md lists {target[1]}, which is not there")
            self.pages[path.relative_to(ROOT)] = path

        def listed(found):
            return found[1] + in_book((SUMMARY.parent / found[2]).resolve().relative_to(ROOT)).as_posix() + found[3]

        (self.source / "SUMMARY.md").write_text(LINK.sub(listed, text))

    def page(self, name, path):
        pieces = prose(path.read_text())
        text = "".join(LINK.sub(lambda found: self.link(name, found), piece) if is_prose else piece for piece, is_prose in pieces)
        target = self.source / in_book(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def link(self, name, found):
        """A link of a page, as it is in the book."""
        address, _, heading = found[2].partition("#")
        if not address or "://" in address:
            return found[0]
        path = (ROOT / name.parent / address).resolve()
        if not path.is_relative_to(ROOT) or not path.exists():
            sys.exit(f"error: {name} links to {address}, which is not in the repository")
        inside = path.relative_to(ROOT)
        if path.is_dir():
            readme = inside / "README.md"
            inside = readme if readme in self.pages else self.listing(inside)
        elif inside not in self.pages:
            self.files.add(inside)
        heading = f"#{heading}" if heading else ""
        return found[1] + relative(in_book(inside), name.parent) + heading + found[3]

    def listing(self, folder):
        """A list of the files of a folder, as a file of text."""
        names = sorted(path.name for path in (ROOT / folder).iterdir() if not path.name.startswith("."))[:LISTED_MAX]
        target = self.source / folder / "files.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{folder}/\n" + "".join(f"    {name}\n" for name in names))
        return folder / "files.txt"

    def make(self):
        self.summary()
        for name, path in self.pages.items():
            self.page(name, path)
        for inside in self.files:
            target = self.source / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / inside, target)


class Links(html.parser.HTMLParser):
    """Addresses and names of headings in a page of HTML."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.names = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key == "id":
                self.names.add(value)
            elif value and ((tag in ("a", "link") and key == "href") or (tag in ("img", "script") and key == "src")):
                self.addresses.add(value)


def check(book):
    """Every link of the book leads to a file of it, and to a heading that is there."""
    pages = {path.resolve(): Links(path.read_text()) for path in book.rglob("*.html")}
    wrong, followed = [], 0
    for path, links in pages.items():
        if path.name in ("print.html", "404.html", "toc.html"):
            continue
        for address in links.addresses:
            parts = urllib.parse.urlsplit(address)
            if parts.scheme in ("http", "https", "data"):
                # A page may name an address; a script, style or picture from elsewhere would need a network.
                continue
            followed += 1
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            name = urllib.parse.unquote(parts.fragment)
            if not target.exists():
                wrong.append(f"{path.relative_to(book.resolve())}: {address} is not in the book")
            elif name and target in pages and name not in pages[target].names:
                wrong.append(f"{path.relative_to(book.resolve())}: {address} names no heading")
    if wrong:
        sys.exit("error: links of the book lead nowhere\n" + "\n".join(sorted(wrong)))
    return len(pages), followed


def main():
    mdbook, out = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "book.toml").write_text(CONFIG)
        (folder / "src").mkdir()
        Book(folder / "src").make()
        done = subprocess.run([mdbook, "build", folder, "--dest-dir", folder / "book"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0 or " WARN" in done.stdout or "ERROR" in done.stdout:
            sys.exit(f"error: mdBook ended with code {done.returncode}\n{done.stdout}")
        pages, links = check(folder / "book")
        if out.exists():
            shutil.rmtree(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / "book", out)
    print(f"{out}/index.html: {pages} files of HTML, {links} links followed")


if __name__ == "__main__":
    main()
