"""Which modules are preloaded: the meaning of the word `torch`, and what the script's own text asks for."""

import os
import sys

_BOOTSTRAP = sys.modules["_frozen_importlib"]
SCRIPT_BYTES_MAX = 1 << 20

# torch imports numpy itself; imported before it, numpy is known for what it alone imports and reads.
TORCH = ("numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch._dynamo")
# A text in the script, and what a script that uses it imports sooner or later. The one place to extend. Inductor is not
# among them: it takes as long as torch itself, many scripts compile only when they are told to, and on some machines its
# import initialises CUDA, after which nothing can be forked.
IN_SCRIPT = (
    (("fully_shard", "FullyShardedDataParallel", "FSDP", "distributed.fsdp"), ("torch.distributed.fsdp",)),
    (("distributed.checkpoint", "dcp.save", "dcp.load"), ("torch.distributed.checkpoint",)),
    (("distributed.tensor", "DTensor", "parallelize_module"), ("torch.distributed.tensor",)),
    (("distributed.elastic", "torchelastic"), ("torch.distributed.elastic",)),
    (("utils.data", "DataLoader"), ("torch.utils.data",)),
    (("torch.profiler",), ("torch.profiler",)),
)


def find(name):
    """The spec of a module, its packages not imported; None when there is none."""
    path = None
    spec = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        try:
            spec = _BOOTSTRAP._find_spec(".".join(parts[:count]), path)
        except Exception:
            return None
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and count < len(parts):
            return None
    return spec


def script_text(kind, script, module, cwd):
    """The text of the script, or of the module that is run, as far as it is a file; empty when it is none."""
    path = None
    if kind == "-m":
        sys.path.insert(0, cwd)
        try:
            spec = find(module + ".__main__") or find(module)
        finally:
            sys.path.remove(cwd)
        path = getattr(spec, "origin", None)
    elif kind == "-c":
        return module
    elif kind != "-":
        path = os.path.join(cwd, script)
        if os.path.isdir(path):
            path = os.path.join(path, "__main__.py")
    try:
        with open(path, "rb") as file:
            return file.read(SCRIPT_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, TypeError, ValueError):
        return ""


def modules(words, text):
    """The modules to import, in order, each once."""
    found = []
    for word in words:
        if word != "torch":
            found.append(word)
            continue
        found.extend(TORCH)
        for signs, names in IN_SCRIPT:
            if any(sign in text for sign in signs):
                found.extend(name for name in names if find(name) is not None)
    return list(dict.fromkeys(found))
