"""Imports preloaded modules in several ways and prints what each import brings."""

import sys

import seen

BEFORE = set(sys.modules)


def step(name):
    """The modules that have come since the last step, in order."""
    new = [module for module in sys.modules if module not in BEFORE]
    BEFORE.update(new)
    seen.show(name, sorted(new))


def about(module):
    """The attributes that the import system sets."""
    spec = module.__spec__
    seen.show(module.__name__, (spec.name, spec.origin, type(spec.loader).__name__, spec.parent, spec.cached,
                                spec.submodule_search_locations, spec.has_location, getattr(spec, "loader_state", None),
                                getattr(spec, "_initializing", None), module.__loader__ is spec.loader,
                                module.__package__,
                                getattr(module, "__file__", None), 
                                sorted(name for name in vars(module) if name[:2] == "__")))


import json  # noqa: E402

step("json")
about(json)
about(json.decoder)
import importlib.util  # noqa: E402

step("importlib.util")
seen.show("find_spec", (importlib.util.find_spec("decimal"), importlib.util.find_spec("no_such_module")))
step("find_spec decimal")
import decimal  # noqa: E402

step("decimal")
about(decimal)
from concurrent.futures import ThreadPoolExecutor  # noqa: E402

step("from concurrent.futures")
import xml.etree.ElementTree as tree  # noqa: E402

step("xml.etree")
about(tree)
seen.show("xml", sorted(name for name in vars(sys.modules["xml"]) if name[:1] != "_"))
import multiprocessing  # noqa: E402

step("multiprocessing")
seen.show("multiprocessing.pool", hasattr(multiprocessing, "pool"))
seen.show("__mp_main__", sys.modules.get("__mp_main__") is sys.modules["__main__"])
import multiprocessing.pool  # noqa: E402

step("multiprocessing.pool")
try:
    import no_such_module  # noqa: F401
except ImportError as error:
    seen.show("missing", (type(error).__name__, str(error), error.name, error.path))
try:
    import json.no_such_part  # noqa: F401
except ImportError as error:
    seen.show("missing part", (type(error).__name__, str(error), error.name, error.path))
import logging  # noqa: E402

step("logging")
first = logging
del sys.modules["logging"]
import logging  # noqa: E402

seen.show("imported again", logging is first)
importlib.reload(json)
step("reload")
module = importlib.import_module("unittest.mock")
step("import_module")
about(module)
import asyncio  # noqa: E402


async def nothing():
    """One step of a loop."""
    await asyncio.sleep(0)
    return 5


seen.show("asyncio", asyncio.run(nothing()))
step("asyncio")
with ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda name: importlib.import_module(name).__name__,
                          ["inspect", "dataclasses", "random", "tempfile"]))
seen.show("threads", found)
import types  # noqa: E402

sys.modules["email"] = fake = types.ModuleType("email")
fake.__path__ = []
try:
    import email.message  # noqa: F401
except ImportError as error:
    seen.show("a part of a package of the script's own", str(error))
import inspect  # noqa: E402

seen.show("getsource", inspect.getsource(about).splitlines()[0])
seen.show("getmodule", inspect.getmodule(about) is sys.modules["__main__"])
import pickle  # noqa: E402

seen.show("pickle", pickle.loads(pickle.dumps([decimal.Decimal("1.5"), json.JSONDecodeError("a", "b", 0)])))
import pkgutil  # noqa: E402

seen.show("pkgutil", sorted(each.name for each in pkgutil.iter_modules(json.__path__)))
import warnings  # noqa: E402

seen.show("filters", warnings.filters)
import gc  # noqa: E402

seen.show("gc", (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks))
seen.show("hooks", (sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace(),
                    sys.getprofile(), sys.getrecursionlimit(), sys.getswitchinterval(), len(sys.path_hooks)))
seen.show("meta path", [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path
                        if getattr(finder, "__module__", "").partition(".")[0] != "enn_forkserver"])
seen.show("import function", __import__.__module__ if hasattr(__import__, "__module__") else None)
import os  # noqa: E402

seen.show("environment class", sorted(name for name in vars(type(os.environ)) if "item" in name or "iter" in name or
                                      "contains" in name))
seen.show("get", os.environ.__getitem__.__qualname__)
