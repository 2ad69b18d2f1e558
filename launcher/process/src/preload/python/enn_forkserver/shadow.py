"""Modules that plain Python would find elsewhere than the server did: a json.py beside the script, say."""

import os
import sys

import _imp

_SUFFIXES = (*_imp.extension_suffixes(), ".py", ".pyc")
_FINDER = sys.modules["_frozen_importlib_external"].PathFinder
_listings = {}
LISTINGS_MAX = 64
_NOT_ON_PATH = ("built-in", "frozen")


def script_folder(argv0, kind, cwd):
    """Returns the future first entry of sys.path, or None: see _PyPathConfig_ComputeSysPathArgv in CPython."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    if kind in ("-m", "-c"):
        return cwd
    path = os.path.join(cwd, argv0)
    if os.path.isdir(path):
        return path
    if kind != "-" and os.path.isfile(path) and is_zip(path):
        return path
    return os.path.dirname(os.path.realpath(path)) if kind != "-" else cwd


def is_zip(path):
    """Whether Python would run the file as an archive: it does when the end of the file says so."""
    if path.endswith((".py", ".pyw")):
        return False
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 65557))
            return b"PK\x05\x06" in file.read()
    except OSError:
        return False


def folder_of(module):
    """The folder of sys.path in which the module was found; None when it was not found there."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    if not isinstance(origin, str) or origin in _NOT_ON_PATH:
        return None
    folder = os.path.dirname(origin)
    return os.path.dirname(folder) if getattr(spec, "submodule_search_locations", None) else folder


def may_be_elsewhere(module):
    """Whether the path is asked for the module at all: built-in and frozen ones come before it."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return origin not in _NOT_ON_PATH


def offered(folder, found, missed):
    """Returns those of the names that an import would find in the folder."""
    try:
        entries = listing(folder or ".")
    except NotADirectoryError:
        return in_archive(folder, {*found, *missed})
    except OSError:
        return set()
    here = set()
    for entry in entries:
        name, dot, rest = entry.partition(".")
        if name in missed and (dot + rest in _SUFFIXES or (not dot and os.path.isdir(os.path.join(folder, name)))):
            here.add(name)
        elif name in found and (dot + rest in _SUFFIXES or (not dot and is_package(os.path.join(folder, name)))):
            here.add(name)
    return here


def in_archive(path, names):
    """Returns those of the names that an import would find in an entry that is no folder. Nothing is cached."""
    archives = sys.modules["zipimport"]._zip_directory_cache
    kept = [(cache, set(cache)) for cache in (sys.path_importer_cache, archives)]
    try:
        return {name for name in names if _FINDER.find_spec(name, [path]) is not None}
    finally:
        for cache, before in kept:
            for entry in [entry for entry in cache if entry not in before]:
                del cache[entry]


def listing(folder):
    """The names in a folder, read anew when it has changed."""
    changed = os.stat(folder).st_mtime_ns
    if len(_listings) > LISTINGS_MAX:
        _listings.clear()
    known = _listings.get(folder)
    if known is None or known[0] != changed:
        known = _listings[folder] = (changed, os.listdir(folder))
    return known[1]


def is_package(folder):
    return any(os.path.exists(os.path.join(folder, "__init__" + suffix)) for suffix in _SUFFIXES)


def beside_script(stash, folder):
    """Names of preloaded modules that the folder of the script would give instead, sorted."""
    if folder is None:
        return []
    homes, missed = stash.tops()
    real = os.path.realpath(folder)
    return sorted(name for name in offered(folder, homes, missed) if name in missed or homes[name] != real)


def on_changed_path(stash, names):
    """Returns the same for folders that were put on sys.path since the server had its own; sorted."""
    added = [entry for entry in sys.path if entry not in stash.path and isinstance(entry, str)]
    if not added:
        return []
    found = {name for name in names if "." not in name and may_be_elsewhere(stash.hidden[name])}
    missed = set()
    for name in names:
        if name in stash.records:
            missed |= stash.records[name].missed
    missed -= found
    result = set()
    for entry in added:
        later = sys.path[sys.path.index(entry):]
        for name in offered(entry, found, missed):
            home = folder_of(stash.hidden[name]) if name in found else None
            if name not in found and name not in sys.modules or home in later and home != entry:
                result.add(name)
    return sorted(result)
