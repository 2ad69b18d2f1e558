"""Renews the files beside this one: every package that `enn export --prepare` installs, with its exact version and SHA-256.

    python3 launcher/export/src/maker/pins/renew.py [NAME…]      (`make pins`)

Needs uv and the package index; nothing is downloaded but descriptions of packages. The first line of each file says what is asked for
and for which releases of Python: change a version there and in prepare.rs, then run this. Only wheels for Linux on x86-64 are listed;
of a package without wheels its source archive is.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).parent
# Holds for every line: nothing is installed anywhere else.
EVERYWHERE = {"platform_machine == 'x86_64'", "sys_platform == 'linux'"}


def resolved(wanted, oldest, before, sources):
    """The packages of `wanted` and of what they need."""
    limit = f" and python_full_version < '{before}'" if before else ""
    environment = f"sys_platform == 'linux' and platform_machine == 'x86_64'{limit}"
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        project = f"[project]\nname='x'\nversion='0'\nrequires-python='>={oldest}'\n[tool.uv]\nenvironments=[\"{environment}\"]\n"
        (place / "pyproject.toml").write_text(project)
        (place / "wanted.in").write_text("\n".join(wanted) + "\n")
        command = ["uv", "pip", "compile", "--universal", "--python-version", oldest, "--no-header", "--quiet"]
        command += [] if sources else ["--only-binary", ":all:"]
        command += ["--format", "pylock.toml", "wanted.in", "-o", "pylock.toml"]
        subprocess.run(command, cwd=place, check=True)
        return tomllib.loads((place / "pylock.toml").read_text())["packages"]


def fits(url):
    """Whether a wheel is for Linux on x86-64 with the GNU C library."""
    name = url.rsplit("/", 1)[1]
    return name.endswith("-any.whl") or ("linux" in name and "musllinux" not in name and name.endswith("x86_64.whl"))


def line(package, constant):
    """A requirement with its digests."""
    clauses = [clause.strip() for clause in package.get("marker", "").split(" and ")]
    marker = " and ".join(clause for clause in clauses if clause and clause not in constant)
    if " or " in marker:
        raise SystemExit(f"{package['name']}: the marker {marker!r} is not understood")
    files = [wheel for wheel in package.get("wheels", []) if fits(wheel["url"])] or [package["sdist"]]
    digests = sorted({file["hashes"]["sha256"] for file in files})
    digests = "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests)
    return f"{package['name']}=={package['version']}{' ; ' + marker if marker else ''}{digests}"


def renew(path):
    head = path.read_text().splitlines()[0]
    found = re.fullmatch(r"# (.+) ; python >= ([0-9.]+)(?: < ([0-9.]+))?( ; sources)?", head)
    if not found:
        raise SystemExit(f"{path}: the first line is {head!r}, expected '# NAME==VERSION … ; python >= OLDEST'")
    wanted, oldest, before, sources = found.groups()
    constant = EVERYWHERE | {f"python_full_version >= '{oldest}'", f"python_full_version < '{before}'"}
    lines = [line(package, constant) for package in resolved(wanted.split(), oldest, before, sources)]
    path.write_text("\n".join([head, *lines]) + "\n")
    print(f"{path.name}: {len(lines)} packages")


if __name__ == "__main__":
    names = sys.argv[1:]
    for each in sorted(HERE.glob("*.txt")):
        if not names or each.stem in names:
            renew(each)
