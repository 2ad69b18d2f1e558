"""Builds a kernel file for the CPU and calls its kernels on torch tensors."""

import ctypes
import hashlib
import pathlib
import re
import subprocess
import tempfile

import torch

HERE = pathlib.Path(__file__).parent
SOURCES = HERE.parents[2] / "src" / "backend" / "cuda" / "src"
ELEMENTS = {torch.float32: "float", torch.bfloat16: "bf16", torch.float16: "f16"}
KERNEL = re.compile(r'extern "C" __global__ (?:void )?(?:__launch_bounds__\([^)]*(?:\([^)]*\))?[^)]*\) )?(?:void )?(\w+)\(([^)]*)\)')
BUILD = pathlib.Path(tempfile.mkdtemp(prefix="enn-kernels-"))


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
        whole = f'#include "{HERE}/device.h"\n{prelude}\n#line 1 "{name}.cu"\n{text}\n{wrappers(text)}\n'
        defines = [f"-DELEMENT={ELEMENTS[kind]}", f"-DELEMENT_BYTES={kind.itemsize}"] + [f"-D{k}={v}" for k, v in numbers.items()]
        key = hashlib.sha256((whole + str(defines)).encode()).hexdigest()[:16]
        library = BUILD / f"{key}.so"
        if not library.exists():
            source = BUILD / f"{key}.cpp"
            source.write_text(whole)
            command = ["g++", "-std=c++17", "-O1", "-g", "-w", "-fPIC", "-shared", "-fno-strict-aliasing"]
            subprocess.run([*command, *defines, "-o", library, source], check=True)
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
