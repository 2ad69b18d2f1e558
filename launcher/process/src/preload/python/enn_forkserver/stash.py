"""The module stash: preloaded modules are hidden from a worker until its script imports them.

A script may set TORCH_LOGS and then import torch, and plain Python would read it then. So a preloaded module leaves
sys.modules, and the first finder of sys.meta_path hands it out at its first import, with exactly the modules that its
own import had imported: the moment at which to compare the environment again, and to let it happen that the import
printed a warning, set a variable or added a filter.
"""

import atexit
import gc
import os
import sys

import _thread
import _warnings

from enn_forkserver import guard, refresh, restart, shadow, streams
from enn_forkserver.ledger import WARNING, watched_lists

_OWN = ("enn_forkserver", "sitecustomize")
_MISSING = object()
_SPEC = type(sys.__spec__)


def attributes(module):
    """The attributes of a module, or of whatever else an import put into sys.modules."""
    return getattr(module, "__dict__", None) or {}


class Handout:
    """The loader of a module that is there already."""

    def __init__(self, module):
        self.module = module
        self.spec = attributes(module).get("__spec__", _MISSING)

    def create_module(self, spec):
        return self.module

    def exec_module(self, module):
        # importlib has put the spec of the hand-out there; the module's own one comes back.
        if self.spec is _MISSING:
            attributes(module).pop("__spec__", None)
        else:
            module.__spec__ = self.spec


class Stash:
    """All preloaded modules, and the finder that hands them out."""

    def __init__(self, ledger, texts):
        self.records = ledger.records
        self.texts = texts
        self.lock = _thread.RLock()
        self.environment = {}
        self.worker = None
        self.path = []
        self.hidden = {}
        self.known_tops = None
        self.bound = {}
        self.importers = {}
        self.plans = {}
        self.originals = {}

    def looked_up(self):
        """All names of variables that any import looked up, each with the first module that did."""
        found = {}
        for record in self.records.values():
            for name in record.looked_up:
                found.setdefault(name, record.name)
        found.pop(None, None)
        return found

    def tops(self):
        """The top-level modules that are preloaded, each with its folder, and the names that imports missed.

        Worked out once: to touch every module at each request would copy half of the memory.
        """
        if self.known_tops is None:
            homes, missed, have = {}, set(), set()
            for name, record in self.records.items():
                missed |= record.missed
                if "." not in name:
                    have.add(name)
                    module = sys.modules.get(name) or self.hidden.get(name)
                    if shadow.may_be_elsewhere(module):
                        homes[name] = os.path.realpath(shadow.folder_of(module) or "/")
            self.known_tops = homes, missed - have
        return self.known_tops

    def hide(self, base, lists, importers):
        """Takes the preloaded modules out of sys.modules, and out of the packages that hold them as attributes."""
        self.originals = dict(sys.modules)
        for name in list(sys.modules):
            if name not in base:
                self.hidden[name] = sys.modules.pop(name)
        for name in [name for name in self.hidden if name.partition(".")[0] in _OWN]:
            del self.hidden[name]
            self.records.pop(name, None)
        for name in sorted(self.records, key=lambda name: self.records[name].order):
            if name not in self.hidden:
                continue
            package, _, child = name.rpartition(".")
            owner = self.hidden.get(package) or base.get(package)
            if owner is not None and attributes(owner).get(child) is self.hidden[name]:
                self.bound[name] = (owner, child)
                delattr(owner, child)
        for name, value in watched_lists().items():
            value[:] = lists[name]
        filters_changed()
        for name in [name for name in sys.path_importer_cache if name not in importers]:
            self.importers[name] = sys.path_importer_cache.pop(name)
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        """Called by importlib for each import of a name that is not in sys.modules."""
        if name not in self.hidden or sys._getframe(2).f_code.co_name != "_find_and_load_unlocked":
            # Not ours, or only asked whether there is such a module: the path finder knows.
            return None
        package = name.rpartition(".")[0]
        if package and sys.modules.get(package) is not self.originals.get(package):
            # A package that the script has put there itself has parts of its own.
            return None
        with self.lock:
            if name not in self.hidden:
                return None
            names = self.closure(name)
            self.compare(name, names)
            module = self.hidden[name]
            self.hand_out(names, name)
        spec = _SPEC(name, Handout(module))
        if "__path__" in attributes(module):
            spec.submodule_search_locations = module.__path__
        return spec

    def prepare(self, wanted):
        """Works out, while the server waits for its first request, what each worker would have to work out."""
        for record in self.records.values():
            found = {}
            for imported in record.imports:
                while imported:
                    if imported in self.hidden and imported != record.name:
                        found[imported] = True
                    imported = imported.rpartition(".")[0]
            record.imports = found
        for name in wanted:
            if name in self.hidden:
                self.plans[name] = self.reach(name)

    def closure(self, name):
        """The hidden modules that an import of this one brings, in the order in which they were loaded."""
        plan = self.plans.get(name)
        return self.reach(name) if plan is None else [each for each in plan if each in self.hidden]

    def reach(self, name):
        """Follows the recorded imports from a module to all modules that are still hidden."""
        found, waiting = set(), [name]
        hidden, records = self.hidden, self.records
        while waiting:
            name = waiting.pop()
            if name in found or name not in hidden:
                # What is there already has brought its own imports with it.
                continue
            found.add(name)
            package = name.rpartition(".")[0]
            if package:
                waiting.append(package)
            if name in records:
                waiting.extend(records[name].imports)
        return sorted(found, key=lambda name: records[name].order if name in records else 0)

    def compare(self, name, names):
        """Executes the worker anew where plain Python would have imported something else now."""
        if self.worker is None:
            return
        looked_up = set()
        for each in names:
            if each in self.records:
                looked_up |= self.records[each].looked_up
        new = {each for each in names if "." not in each and each not in sys.stdlib_module_names}
        now = dict(os.environ)
        changed = guard.difference(self.environment, now, looked_up,
                                   lambda name: guard.read_while_loading(name, new, sys.modules))
        if changed:
            restart.again_if_possible(
                self.worker, f"the script changes {', '.join(changed)} before it imports {name}",
                f"{name} was imported with the value that the worker was started with")
        found = shadow.on_changed_path(self, names)
        if found:
            restart.again_if_possible(
                self.worker, f"the script's path has another module {', '.join(found)} for its import of {name}",
                "the preloaded one was used")

    def hand_out(self, names, asked):
        """Puts the modules where an import would have put them, and lets their imports' effects happen."""
        for name in names:
            module = self.hidden.pop(name)
            if name != asked:
                sys.modules.setdefault(name, module)
            owner, child = self.bound.pop(name, (None, None))
            if owner is not None and name != asked and child not in attributes(owner):
                setattr(owner, child, module)
            if owner is not None:
                self.searched(owner)
            record = self.records.get(name)
            if record is not None:
                self.effects(record)
            refresh.module(name, module)
        if not self.hidden and self in sys.meta_path:
            sys.meta_path.remove(self)
            if self.worker is not None:
                self.worker.settled()

    def searched(self, package):
        """The import of a submodule has searched the folders of its package."""
        path = attributes(package).get("__path__", ())
        # The path of a namespace package looks at its parent when it is read, which may not be there yet.
        for folder in list(getattr(path, "_path", path)):
            finder = self.importers.pop(folder, None)
            if finder is not None:
                if hasattr(finder, "invalidate_caches"):
                    finder.invalidate_caches()
                sys.path_importer_cache.setdefault(folder, finder)

    def effects(self, record):
        """Applies the effects that the import of one module had besides making the module."""
        for name, before, after in record.environment:
            now = os.environ._data.get(name)
            if now != before:
                continue
            text = os.fsdecode(name)
            if after is not None:
                os.environ[text] = self.environment[text] = os.fsdecode(after)
            elif now is not None:
                del os.environ[text]
                self.environment.pop(text, None)
        for which, before, after in record.lists:
            now = watched_lists()[which]
            if which == "warnings.filters" and "warnings" in sys.modules:
                # Another list than that of the C part where the script is inside catch_warnings.
                now = sys.modules["warnings"].filters
            extend_alike(now, before, after)
            filters_changed()
        for function, args, kwargs in record.at_exit:
            atexit.register(function, *args, **kwargs)
        for which, start, end in record.output:
            if which == WARNING:
                warn_again(start, end)
            else:
                streams.print_again(which, self.texts[which][start:end])

    def stop_comparing(self):
        """Runs at exit after what the script registered: what is imported from then on decides nothing any more."""
        self.worker = None

    def give_all_back(self):
        """Runs last at exit: interpreter and libraries are torn down with all modules visible, as they expect."""
        for name, module in self.hidden.items():
            sys.modules.setdefault(name, module)
        self.hidden = {}
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        gc.unfreeze()


def filters_changed():
    """Tells the C part of `warnings` that its list of filters is another one."""
    if hasattr(_warnings, "_filters_mutated"):
        _warnings._filters_mutated()
    elif hasattr(_warnings, "_acquire_lock"):
        # Python 3.14.
        _warnings._acquire_lock()
        try:
            _warnings._filters_mutated_lock_held()
        finally:
            _warnings._release_lock()


def restore_filters(filters):
    """Puts the filters of warnings back, and makes the interpreter look at them.

    It keeps the list that it saw at the last warning, and goes on with it where the module `warnings` is out of sight:
    a copy that catch_warnings made, if an import warned inside one. So it is shown the right list by a warning.
    """
    now = _warnings.filters
    now[:] = [("ignore", None, Warning, None, 0)]
    filters_changed()
    _warnings.warn_explicit("", UserWarning, "", 1)
    now[:] = filters
    filters_changed()


def warn_again(message, names):
    """Warns as the import did, by the filters that the script has now; raises where one makes an error of it."""
    import warnings
    names = {} if names is None else names
    module = names.get("__name__")
    registry = names.setdefault("__warningregistry__", {}) if module is not None else None
    warnings.warn_explicit(message.message, message.category, message.filename, message.lineno, module, registry, None,
                           message.source)


def extend_alike(now, before, after):
    """Adds to the list at the front and at the back what the import had added there."""
    size = len(before)
    if size and after[-size:] == before:
        front, back = after[:-size], []
    elif after[:size] == before:
        front, back = [], after[size:]
    else:
        front, back = [], [item for item in after if item not in before]
    now[:0] = [item for item in front if item not in now]
    now.extend(item for item in back if item not in now)
