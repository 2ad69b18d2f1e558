"""Records what each preloaded module did while it was imported, so that the stash can let it happen again.

Python tells nobody which module imports which, so while the server preloads the ledger stands where every import
passes: `builtins.__import__`, `importlib._bootstrap._gcd_import` and `_load_unlocked`. The last gives the stack of the
modules that are being executed; whatever changes between two of its steps was done by the module on top of it.
"""

import atexit
import builtins
import os
import sys

import _warnings

from enn_forkserver import guard

_BOOTSTRAP = sys.modules["_frozen_importlib"]
# The first item of an entry of Record.output that is no output of a stream.
WARNING = -1
_MODULE = type(sys)


class Record:
    """One preloaded module: what its import imported, read, printed and changed."""

    __slots__ = ("name", "order", "imports", "looked_up", "missed", "output", "environment", "lists",
                 "at_exit")

    def __init__(self, name):
        self.name = name
        self.order = 0
        self.imports = {}
        self.looked_up = set()
        self.missed = set()
        self.output = []
        self.environment = []
        self.lists = []
        self.at_exit = []


def watched_lists():
    """The lists of the interpreter that an import may extend."""
    return {"warnings.filters": _warnings.filters, "sys.path": sys.path, "sys.meta_path": sys.meta_path,
            "sys.path_hooks": sys.path_hooks}


class Misses:
    """The last finder while preloading: optional modules that were not there, but may be beside the script."""

    def __init__(self, ledger):
        self.ledger = ledger

    def find_spec(self, name, path=None, target=None):
        if path is None and self.ledger.stack:
            self.ledger.stack[-1].missed.add(name)
        return None


class Ledger:
    """The records of all modules that are imported between `open` and `close`."""

    def __init__(self, base):
        self.base = base
        self.capture = None
        self.records = {}
        self.known = set(sys.modules)
        self.stack = []
        self.done = 0
        self.outside = Record("")
        self.environment = {}
        self.sizes = None
        self.lists = {}
        self.watched = watched_lists()
        self.misses = Misses(self)
        self.warnings = None

    def open(self):
        self.load = _BOOTSTRAP._load_unlocked
        self.gcd_import = _BOOTSTRAP._gcd_import
        self.import_ = builtins.__import__
        _BOOTSTRAP._load_unlocked = self.loading
        _BOOTSTRAP._gcd_import = self.importing_by_name
        builtins.__import__ = self.importing
        self.register = atexit.register
        self.unregister = atexit.unregister
        atexit.register = self.registering
        atexit.unregister = self.unregistering
        sys.meta_path.append(self.misses)
        self.lookups = guard.Lookups(self.looking_up)
        self.remember()
        # Not before: what it imports is recorded as well.
        import warnings
        self.warnings = warnings
        self.show_warning = warnings._showwarnmsg
        self.default_show = getattr(warnings, "_showwarnmsg_impl", None)

    def listen(self, capture):
        """From here on, what is printed, or warned of, is booked to the module that does it."""
        self.capture = capture
        self.sizes = capture.sizes()
        self.warnings._showwarnmsg = self.warning

    def close(self):
        self._settle()
        self.warnings._showwarnmsg = self.show_warning
        self.lookups.stop()
        builtins.__import__ = self.import_
        _BOOTSTRAP._gcd_import = self.gcd_import
        _BOOTSTRAP._load_unlocked = self.load
        atexit.register = self.register
        atexit.unregister = self.unregister
        sys.meta_path.remove(self.misses)

    # What the interpreter and the modules call.

    def looking_up(self, name):
        if self.stack:
            self.stack[-1].looked_up.add(guard.name_looked_up(name))

    def loading(self, spec):
        """Stands for importlib's `_load_unlocked`: executes one module."""
        self._settle()
        name = spec.name
        record = self.records.get(name) or Record(name)
        if self.stack:
            self.stack[-1].imports[name] = True
        self.known.add(name)
        self.stack.append(record)
        try:
            module = self.load(spec)
        except BaseException:
            # A module that another one tried and did without: it is not in sys.modules, and what it did stays done.
            self._settle()
            self.stack.pop()
            self._adopt(record)
            raise
        self._settle()
        self.stack.pop()
        self.done += 1
        record.order = self.done
        if name not in self.base:
            self.records[name] = record
        self._extras(record)
        for value in list(getattr(module, "__dict__", {}).values()):
            if type(value) is _MODULE and sys.modules.get(value.__name__) is value:
                record.imports[value.__name__] = True
        return module

    def importing(self, name, globals=None, locals=None, fromlist=(), level=0):
        """Stands for `__import__`: the import statement."""
        result = self.import_(name, globals, locals, fromlist, level)
        if self.stack:
            imports = self.stack[-1].imports
            if level:
                try:
                    name = _BOOTSTRAP._resolve_name(name, _BOOTSTRAP._calc___package__(globals or {}), level)
                except (ImportError, TypeError, KeyError, ValueError):
                    return result
            imports[name] = True
            for item in fromlist or ():
                imports[f"{name}.{item}"] = True
        return result

    def warning(self, message):
        """Stands for the function of `warnings` that shows one. Shown is nothing now; the hand-out warns again."""
        if self.is_shown_otherwise():
            self.show_warning(message)
            return
        self._settle()
        frame = sys._getframe(1)
        while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (message.filename, message.lineno):
            frame = frame.f_back
        record = self.stack[-1] if self.stack else self.outside
        record.output.append((WARNING, message, frame.f_globals if frame is not None else None))

    def is_shown_otherwise(self):
        """Whether an import keeps its warnings for itself: in catch_warnings(record=True), or by a function of its own."""
        context = getattr(sys.modules.get("_py_warnings"), "_get_context", None)
        if context is not None and getattr(context(), "log", None) is not None:
            # Python 3.14.
            return True
        now = (getattr(self.warnings, name, None) for name in ("showwarning", "_showwarnmsg_impl"))
        return tuple(now) != (getattr(self.warnings, "_showwarning_orig", None), self.default_show)

    def importing_by_name(self, name, package=None, level=0):
        """Stands for importlib's `_gcd_import`: what importlib.import_module calls."""
        result = self.gcd_import(name, package, level)
        if self.stack:
            self.stack[-1].imports[_BOOTSTRAP._resolve_name(name, package, level) if level else name] = True
        return result

    def registering(self, function, *args, **kwargs):
        """Stands for atexit.register: a module that no script imports has nothing to do at exit."""
        # The module that the function belongs to may do so once for all that use it, as weakref does.
        owner = getattr(function, "__module__", None)
        if not self.stack or (owner in self.base and owner != "builtins"):
            return self.register(function, *args, **kwargs)
        loading = {record.name: record for record in self.stack}
        record = loading.get(owner) or self.records.get(owner) or self.stack[-1]
        record.at_exit.append((function, args, kwargs))
        return function

    def unregistering(self, function):
        """Stands for atexit.unregister."""
        for record in [*self.records.values(), *self.stack]:
            record.at_exit = [entry for entry in record.at_exit if entry[0] != function]
        self.unregister(function)

    # What changed since the last step.

    def _adopt(self, failed):
        """Gives what a failed module did to the module that tried it."""
        owner = self.stack[-1] if self.stack else self.outside
        owner.imports.update(failed.imports)
        owner.looked_up |= failed.looked_up
        owner.missed |= failed.missed
        for name in ("output", "environment", "lists",
                 "at_exit"):
            getattr(owner, name).extend(getattr(failed, name))
        if failed.name not in sys.modules:
            self.known.discard(failed.name)

    def _extras(self, record):
        """Names that the module put into sys.modules by hand, such as os.path or __mp_main__."""
        if len(sys.modules) <= len(self.known):
            return
        for name in [name for name in list(sys.modules) if name not in self.known]:
            self.known.add(name)
            extra = Record(name)
            extra.order = record.order
            extra.imports[record.name] = True
            self.records[name] = extra
            record.imports[name] = True

    def remember(self):
        self.environment = dict(os.environ._data)
        self.lists = {name: list(value) for name, value in self.watched.items()}

    def _settle(self):
        """Books what changed since the last step to the module that is being executed."""
        record = self.stack[-1] if self.stack else self.outside
        if os.environ._data != self.environment:
            now = dict(os.environ._data)
            for name in {**self.environment, **now}:
                if self.environment.get(name) != now.get(name):
                    record.environment.append((name, self.environment.get(name), now.get(name)))
            self.environment = now
        if self.capture is not None:
            self._settle_output(record)
        for name, value in self.watched.items():
            before = self.lists[name]
            if value != before:
                record.lists.append((name, before, list(value)))
                self.lists[name] = list(value)

    def _settle_output(self, record):
        sizes = self.capture.sizes()
        if sizes != self.sizes:
            for which, (start, end) in enumerate(zip(self.sizes, sizes)):
                if end > start:
                    record.output.append((which, start, end))
            self.sizes = sizes
