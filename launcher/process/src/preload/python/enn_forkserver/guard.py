"""The environment guard: which variables must be equal in the server and in a worker.

A preloaded module has read the server's environment. So a worker may differ from it only in variables that nobody has
read yet: neither Python code (every name looked up in os.environ while preloading is recorded) nor C code (which the
prefixes below stand for, since getenv cannot be watched).
"""

import os

# Read by the interpreter, the dynamic linker or the C library when the process starts. A script that sets one of these
# for its children changes nothing in its own process, so they are compared with a request only.
AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_TUNABLES", "GCONV_PATH", "COVERAGE_PROCESS_")
# Read by C and C++ libraries when they are loaded, with the packages that bring such a library.
AT_IMPORT = {
    ("OMP_", "GOMP_", "KMP_", "MKL", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "GFORTRAN_"): ("numpy", "torch"),
    ("NPY_", "NUMPY_"): ("numpy",),
    ("DNNL_", "ONEDNN_", "I_MPI_", "TORCH", "PYTORCH", "ATEN_", "AOT", "CUBLAS", "CUDNN_", "CUTLASS", "CUDA_MODULE", "NVRTC",
     "NVFUSER", "KINETO_", "ACC_", "FX_", "PT2_", "GLOG_", "GFLAGS_"): ("torch",),
    ("TRITON_",): ("triton",), ("SYMPY_",): ("sympy",), ("NETWORKX_",): ("networkx",), ("TQDM_",): ("tqdm",),
    ("OPENSSL_",): (),
}
# Further variables, by their whole names.
AT_IMPORT_NAMES = frozenset(("CI", "CXX", "CC", "LOGLEVEL", "KMP_AFFINITY"))
# Read when they are used, long after the import, although they match one of the above.
LATE = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCH_FR_", "NCCL_", "LANGUAGE")
# PYTORCH_NVML_BASED_CUDA_CHECK is read whenever a device is asked for, and what it holds while preloading is ours;
# CUBLAS_WORKSPACE_CONFIG when the first handle is made. Libraries and scripts set both after they have imported torch.
LATE_NAMES = frozenset(("TORCHINDUCTOR_CACHE_DIR", "PWD", "OLDPWD", "SHLVL", "_", "PYTORCH_NVML_BASED_CUDA_CHECK",
                        "CUBLAS_WORKSPACE_CONFIG"))
# Differ between the workers of a job: a module that looks at one while it is imported cannot be preloaded.
RANK_NAMES = frozenset(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                        "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"))
DEVICES = "CUDA_VISIBLE_DEVICES"
# Set while preloading only; what they hold then is ours and is never seen by a worker.
# TORCH_WARM_POOL: PyTorch 2.8 starts a thread and a process when inductor is imported.
# PYTORCH_NVML_BASED_CUDA_CHECK: inductor asks at import whether there is a device; asked through CUDA, that opens the
# driver, and every forked child then fails with "Cannot re-initialize CUDA in forked subprocess".
WHILE_PRELOADING = {"TORCH_WARM_POOL": "0", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def is_late(name):
    return name in LATE_NAMES or name.startswith(LATE)


def owners(name):
    """The packages whose C code reads the variable when it is loaded; None when none does, () when it may be any."""
    if name in AT_IMPORT_NAMES:
        return ()
    return next((packages for prefixes, packages in AT_IMPORT.items() if name.startswith(prefixes)), None)


def read_at_start(name):
    """Whether C code may have read the variable in a process that has started and imported."""
    return not is_late(name) and (name.startswith(AT_START) or owners(name) is not None)


def read_while_loading(name, new, before):
    """Whether C code may read the variable while the packages `new` are loaded, where those of `before` are there.

    What is not known may have its own copy of a library, and read for the first time what nobody has.
    """
    found = owners(name)
    if found is None or not new or is_late(name):
        return False
    return any(package in new for package in found) or not any(package in before for package in found)


def hides_devices(value):
    return value is not None and value.strip() in ("", "-1", "NoDevFiles")


def same(name, one, other):
    """Whether the two values cannot be told apart by what reads the name at import."""
    if name == DEVICES:
        # Which devices are seen is asked late; only whether there is any at all may have been asked already.
        return hides_devices(one) == hides_devices(other)
    if name == "PYTHONPATH":
        return (one or "") == (other or "")
    return one == other


def difference(server, worker, looked_up, read_by_c):
    """Returns the names in which the two environments differ and that have been read, by Python or by C, sorted."""
    found = []
    for name in {**server, **worker}:
        if not same(name, server.get(name), worker.get(name)) and (
                (name in looked_up and not is_late(name)) or read_by_c(name)):
            found.append(name)
    return sorted(found)


class Environment:
    """The server's environment: as it was given, and as Python's own start has changed it.

    Python sets LC_CTYPE in the C locale, and a .pth file may set anything; what they did here they do in every worker.
    """

    def __init__(self, given, now):
        own = ("ENN_FORKSERVER_", "PYTHONPATH")
        self.now = now
        self.given = {name: value for name, value in given.items() if not name.startswith(own)}
        if "PYTHONPATH" in now:
            self.given["PYTHONPATH"] = now["PYTHONPATH"]
        self.changed = {name: now.get(name) for name in {**self.given, **now} if self.given.get(name) != now.get(name)}

    def of_worker(self, given):
        """What such a process makes of what it was given."""
        result = dict(given)
        for name, value in self.changed.items():
            if given.get(name) != self.given.get(name):
                continue
            if value is None:
                result.pop(name, None)
            else:
                result[name] = value
        return result


class Lookups:
    """Tells a callback each name that is looked up in os.environ, until it is stopped.

    A copy of the whole environment looks up every name that it has just been given; those lookups are left out, since
    nearly all such copies are made for a child process. What code does with the names of an iteration cannot be seen.
    """

    def __init__(self, callback):
        self.kind = type(os.environ)
        self.saved = {name: vars(self.kind).get(name) for name in ("__getitem__", "__contains__", "__iter__")}
        kind = self.kind
        get_item, contains, iterate = kind.__getitem__, kind.__contains__, kind.__iter__
        given = [None]

        def watched_get_item(mapping, name):
            if name != given[0]:
                callback(name)
            return get_item(mapping, name)

        def watched_contains(mapping, name):
            if name != given[0]:
                callback(name)
            return contains(mapping, name)

        def watched_iterate(mapping):
            for name in iterate(mapping):
                given[0] = name
                yield name
            given[0] = None

        kind.__getitem__, kind.__contains__, kind.__iter__ = watched_get_item, watched_contains, watched_iterate

    def stop(self):
        for name, value in self.saved.items():
            if value is None:
                delattr(self.kind, name)
            else:
                setattr(self.kind, name, value)


def name_looked_up(name):
    """The name as text: os.environb looks up bytes."""
    return os.fsdecode(name) if isinstance(name, (str, bytes)) else None
