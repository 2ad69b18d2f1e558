"""The flags of torchrun, release by release, from torch's own torch/distributed/run.py: launcher/src/torchrun/releases.json.

    python tests/conformance/_torchrun_flags.py [RELEASE…]     reads them anew, of the releases named or of all: 75 MB each

Nothing of torch is run: the file is taken out of the smallest wheel of the release (that for macOS) and its calls are read. The unit tests of
the launcher hold `enn run` to what is written, _releases.py holds what is written to the releases that are installed.
"""

import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "launcher" / "src" / "torchrun" / "releases.json"
RELEASES = ["2.8.0", "2.9.0", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0"]
PLATFORMS = ["macosx_11_0_arm64", "macosx_12_0_arm64", "macosx_13_0_arm64", "macosx_14_0_arm64", "macosx_15_0_arm64"]
RUN = "torch/distributed/run.py"
# Names of modes stand in an enumeration of another file.
ENUMERATIONS = "torch/numa/binding.py"
# Actions of argparse, and torch's own, that take no value.
SWITCHES = {"check_env", "store_true", "store_false", "store_const", "help", "version"}
# Actions that read PET_<NAME>.
WITH_VARIABLE = {"env", "check_env"}
SECONDS_MAX = 1200


def constant(node):
    return node.value if isinstance(node, ast.Constant) else None


def name_of(node):
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else constant(node)


def choices(node, parser, enumerations):
    """A list of texts, also one that the parser's function names, or the values of an enumeration."""
    if isinstance(node, ast.Name):
        given = [item.value for item in ast.walk(parser) if isinstance(item, ast.Assign) and name_of(item.targets[0]) == node.id]
        node = next((value for value in given if isinstance(value, ast.List)), None)
    if node is None:
        return None
    if isinstance(node, (ast.List, ast.Tuple)):
        return [constant(item) for item in node.elts]
    if isinstance(node, ast.ListComp):
        name = name_of(node.generators[0].iter).lstrip("_")
        for item in ast.walk(ast.parse(enumerations)):
            if isinstance(item, ast.ClassDef) and item.name == name:
                return [constant(line.value) for line in item.body if isinstance(line, ast.Assign)]
    return None


def flags(source, enumerations):
    """Each flag by its first long name: spellings, whether a value follows, its variable, the values it may have."""
    [parser] = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == "get_args_parser"]
    found = {}
    for call in ast.walk(parser):
        if not isinstance(call, ast.Call) or name_of(call.func) not in ("add_argument", "add_argument_to"):
            continue
        words = [constant(item) for argument in call.args for item in (argument.elts if isinstance(argument, ast.List) else [argument])]
        spellings = [word for word in words if isinstance(word, str) and word.startswith("-")]
        if not spellings:
            continue
        more = {keyword.arg: keyword.value for keyword in call.keywords}
        action = name_of(more["action"]) if "action" in more else None
        longs = [spelling for spelling in spellings if spelling.startswith("--")]
        variable = f"PET_{longs[0][2:].replace('-', '_').upper()}" if action in WITH_VARIABLE else None
        found[longs[0]] = {"spellings": spellings, "value": action not in SWITCHES, "variable": variable,
                           "choices": choices(more.get("choices"), parser, enumerations)}  # fmt: skip
    return dict(sorted(found.items()))


def of_python(site_packages):
    """Those of an installed torch."""
    read = lambda name: (Path(site_packages) / name).read_text() if (Path(site_packages) / name).exists() else ""
    return flags(read(RUN), read(ENUMERATIONS))


def of_release(release):
    with tempfile.TemporaryDirectory() as folder:
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12",
                   *platforms, "--dest", folder, f"torch=={release}"]  # fmt: skip
        subprocess.run(command, check=True, timeout=SECONDS_MAX)
        [wheel] = Path(folder).glob("*.whl")
        megabytes = wheel.stat().st_size // 1_000_000
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            read = lambda name: archive.read(name).decode() if name in names else ""
            found = flags(read(RUN), read(ENUMERATIONS))
    print(f"{release}: {len(found)} flags ({megabytes} MB were loaded)", flush=True)
    return found


def recorded():
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def write(releases):
    ordered = sorted(releases.items(), key=lambda item: [int(part) for part in item[0].split(".")])
    lines = []
    for release, found in ordered:
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(flag)}" for name, flag in found.items())
        lines.append(f"  {json.dumps(release)}: {{\n{rows}\n  }}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    releases = recorded()
    for release in sys.argv[1:] or RELEASES:
        releases[release] = of_release(release)
        write(releases)


if __name__ == "__main__":
    main()
