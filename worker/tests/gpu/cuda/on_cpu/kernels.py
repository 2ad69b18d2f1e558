"""Builds a kernel file for the CPU and calls its kernels on torch tensors."""

import atexit
import ctypes
import functools
import hashlib
import pathlib
import re
import shutil
import subprocess
import tempfile

import torch

HERE = pathlib.Path(__file__).parent
SOURCES = HERE.parents[3] / "core" / "src" / "backend" / "cuda" / "src"
ELEMENTS = {torch.float32: "float", torch.bfloat16: "bf16", torch.float16: "f16"}
KERNEL = re.compile(r'extern "C" __global__ (?:void )?(?:__launch_bounds__\([^)]*(?:\([^)]*\))?[^)]*\) )?(?:void )?(\w+)\(([^)]*)\)')
BUILD = pathlib.Path(tempfile.mkdtemp(prefix="enn-kernels-"))
atexit.register(shutil.rmtree, BUILD, ignore_errors=True)
COMPILE = ["g++", "-std=c++17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing"]


@functools.cache
def device_header():
    """device.h where it is compiled already: half of the time of each file is that of its headers."""
    header = BUILD / "device.h"
    shutil.copy(HERE / header.name, header)
    subprocess.run([*COMPILE, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return header


def wrappers(text):
    """One C function per kernel that runs it over a grid."""
    lines = []
    for name, parameters in KERNEL.findall(text):
        names = [re.split(r"[ *]", p.strip())[-1] for p in parameters.split(",")]
        declared = parameters.replace("__grid_constant__", "")
        lines.append(
            f'extern "C" void run_{name}(unsigned blocks, unsigned tx, unsigned ty, {declared}) '
            f"{{ device::run(blocks, tx, ty, [&] {{ {name}({', '.join(names)}); }}); }}"
        )
    return "\n".join(lines)


class Kernels:
    """One file for one element type and set of numbers."""

    def __init__(self, name, kind, **numbers):
        prelude = (SOURCES / "prelude.cu").read_text()
        text = (SOURCES / f"{name}.cu").read_text()
        either = re.search(r"#if GATED\n(.*)#else\n(.*)#endif", text, re.DOTALL)
        if either:
            text = text.replace(either[0], either[1 if numbers["GATED"] else 2])
        numbers = {"ELEMENT": ELEMENTS[kind], "ELEMENT_BYTES": kind.itemsize, **numbers}
        # Behind the header: one that was compiled without them cannot be used after them.
        defines = "\n".join(f"#define {name} {value}" for name, value in numbers.items())
        whole = f'#include "{device_header()}"\n{defines}\n{prelude}\n#line 1 "{name}.cu"\n{text}\n{wrappers(text)}\n'
        key = hashlib.sha256(whole.encode()).hexdigest()[:16]
        library = BUILD / f"{key}.so"
        if not library.exists():
            source = BUILD / f"{key}.cpp"
            source.write_text(whole)
            subprocess.run([*COMPILE, "-shared", "-o", library, source], check=True)
        self.library = ctypes.CDLL(str(library))

    def __call__(self, kernel, blocks, threads, *arguments):
        """Tensors go as addresses, None as null, int as i64, float as float; ctypes values as they are."""
        tx, ty = threads if isinstance(threads, tuple) else (threads, 1)
        getattr(self.library, f"run_{kernel}")(blocks, tx, ty, *[value(a) for a in arguments])


def value(argument):
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, int):
        return ctypes.c_longlong(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return argument


def word(x):
    """An int or unsigned parameter."""
    return ctypes.c_uint(x)
