"""Stands in for CUDA's libraries under a PyTorch that is only used on the CPU: 0.9 GB to load instead of 3.8.

PyPI has no PyTorch for x86-64 without CUDA. Its libraries do not load without those of CUDA, and call nothing of them where there is no
GPU. So each library that is missing is made here, of functions that all say "there is no device" (cudaErrorNoDevice), with the versions
of symbols that PyTorch asks for. The runtime itself (libcudart, 1 MB) is NVIDIA's.
"""

import re
import subprocess
from pathlib import Path

NO_DEVICE = 100
# Names of functions of NVIDIA's, where no version tells whose they are.
NVIDIAS = re.compile("cu|nv|nccl")
# Loaded only where there is a GPU, with the driver's own library.
LATE = "libcaffe2_nvrtc.so"
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp|util|resolv))(-[0-9a-f]+)?\.so")


def told(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needs(library):
    """Libraries it needs, and the library of each version of symbols that it asks for."""
    libraries, versions, of = [], {}, None
    for line in told("objdump", "-p", library).splitlines():
        words = line.split()
        if words[:1] == ["NEEDED"]:
            libraries.append(words[1])
        elif line.strip().startswith("required from "):
            of = line.strip().removeprefix("required from ").rstrip(":")
        elif of and len(words) == 4 and words[0].startswith("0x"):
            versions[words[3]] = of
        elif not line.strip():
            of = None
    return libraries, versions


def symbols(library):
    """Names it defines, and those it lacks with their versions; weak ones may stay away."""
    defined, lacks = set(), {}
    for line in told("objdump", "-T", library).splitlines():
        if "*UND*" in line:
            words = line.split()
            name, before = words[-1], words[-2].strip("()")
            if words[1] != "w":
                lacks[name] = None if before == "Base" or re.fullmatch("[0-9a-f]{16}", before) else before
        elif len(line.split()) > 4:
            defined.add(line.split()[-1])
    return defined, lacks


def make(folder, library, versions):
    """A library of functions; `versions`: names of each version, None for none."""
    names = sorted({name for group in versions.values() for name in group})
    source, script = folder / "stub.c", folder / "stub.map"
    source.write_text("".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in names))
    nodes = [f"{version} {{ global: {'; '.join(sorted(group))}; }};" for version, group in versions.items() if version]
    command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}", "-o", folder / library, source]
    if nodes:
        script.write_text("\n".join(nodes) + "\n")
        command.append(f"-Wl,--version-script={script}")
    subprocess.run([str(word) for word in command], check=True)
    source.unlink()
    script.unlink(missing_ok=True)


def main(torch):
    """Makes those that the libraries of this folder `torch` lack, beside them; what NVIDIA's packages beside it bring is not lacking."""
    folder = Path(torch) / "lib"
    present = sorted(folder.glob("*.so*")) + sorted(Path(torch).glob("*.so")) + sorted(Path(torch).glob("../nvidia/*/lib/*.so*"))
    defined, wanted, libraries, owners = set(), {}, set(), {}
    for library in (library for library in present if library.name != LATE):
        own, versions = needs(library)
        here, lacks = symbols(library)
        libraries.update(own)
        owners.update(versions)
        defined |= here
        wanted.update(lacks)
    names = {library.name for library in present}
    missing = sorted(name for name in libraries if name not in names and not SYSTEM.match(name))
    parts = {library: {} for library in missing}
    rest = set()
    for name, version in wanted.items():
        if owners.get(version) in parts:
            parts[owners[version]].setdefault(version, set()).add(name)
        elif version is None and name not in defined and NVIDIAS.match(name):
            rest.add(name)
    # Which library a name without a version belongs to is not said: each that gives none has them all.
    for versions in parts.values():
        if not versions:
            versions[None] = rest
    for library, versions in parts.items():
        make(folder, library, versions)
    return missing
