import hashlib, re, shlex, stat, tempfile, zipfile

tempfile.tempdir = job["scratch"]
for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR"):
    os.environ[name] = job["scratch"]
import torch
from torch._inductor import config
from torch._inductor.cpp_builder import get_cpp_compiler
from torch.export.graph_signature import InputKind

# What a package of ours says of itself: the program that its code is, and where in its library which weight lies.
PROGRAM, WEIGHTS = "extra/enn.program", "extra/enn.weights"
# A number that is compiled in could not be replaced.
KEPT = {"always_keep_tensor_constants": True, "joint_graph_constant_folding": False}
# What a package says of itself where its check of what it is given lets a single row pass.
ONE_ROW = "ENN_ONE_ROW"
# Each weight begins at a multiple of it.
ALIGN = 64


def one_library():
    """Links code with the libstdc++ that is at work here. A compiler that has only an archive of it, or prefers that, gives the code one
    of its own, and two of them in a process end it at the first regular expression: while a package is loaded."""
    with open("/proc/self/maps") as maps:
        loaded = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libstdc++.so" in line}
    path = os.path.join(job["scratch"], "g++")
    # It is there where this process makes one package after the other.
    if len(loaded) != 1 or os.path.exists(path):
        return
    # The one that would be taken without this.
    compiler, library = shlex.quote(get_cpp_compiler()), shlex.quote(loaded.pop())
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\ncase " $* " in *" -shared "*) exec {compiler} "$@" {library} ;; esac\nexec {compiler} "$@"\n')
    os.chmod(path, stat.S_IRWXU)
    config.cpp.cxx = (None, path)


def digest(archive):
    """Of all that an archive says of its program: operations, shapes, names, the range of the batch; not of its weights."""
    with zipfile.ZipFile(archive) as file:
        [program] = [name for name in file.namelist() if name.endswith("/models/model.json")]
        return hashlib.sha256(file.read(program)).hexdigest()


def known(program):
    """The bytes of all that the program knows, by name: constants become buffers, whose names the compiler keeps."""
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.CONSTANT_TENSOR:
            spec.kind, spec.persistent = InputKind.BUFFER, True
            program.state_dict[spec.target] = program.constants.pop(spec.target)
    raw = lambda tensor: tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return {name: raw(tensor) for name, tensor in program.state_dict.items()}


def placed(file, weights):
    """Where in the library which weight lies, from its order in the code beside it; nothing where it does not lie there, once."""
    [library] = [name for name in file.namelist() if name.endswith(".wrapper.so")]
    [code] = [name for name in file.namelist() if name.endswith(".wrapper.cpp")]
    told = re.findall(r'constants_info_\[(\d+)\]\.original_fqn = "([^"]*)";', file.read(code).decode())
    names = [name for _, name in sorted((int(number), name) for number, name in told)]
    if set(names) != set(weights) or not names:
        return library, {}
    padded = [weights[name].ljust(-len(weights[name]) % ALIGN + len(weights[name]), b"\0") for name in names]
    bytes, blob = file.read(library), b"".join(padded)
    at = bytes.find(blob)
    if at < 0 or bytes.find(blob, at + 1) >= 0:
        return library, {}
    places = {}
    for name, part in zip(names, padded):
        places[name], at = at, at + len(part)
    return library, places


def checked(program):
    """How the code looks at what it is given: PyTorch takes every size that is open for 2 at least, and the code refuses a single row for
    that where it is not told otherwise, though it computes with one as with many."""
    fewest = min((bounds.lower for bounds in program.range_constraints.values()), default=1)
    if fewest > 1:
        return {}
    return {"aot_inductor.check_lowerbound": False, "aot_inductor.metadata": {ONE_ROW: "1"}}


def compiled(program, out):
    one_library()
    if job["device"] != "cpu":
        torch._inductor.aoti_compile_and_package(program, package_path=out, inductor_configs=checked(program))
        return
    weights = known(program)
    torch._inductor.aoti_compile_and_package(program, package_path=out, inductor_configs=KEPT | checked(program))
    with zipfile.ZipFile(out) as file:
        root = file.namelist()[0].split("/")[0]
        places = placed(file, weights)[1]
    # A package whose weights were not found stays what it is; its code cannot be taken for others.
    if places:
        with zipfile.ZipFile(out, "a") as file:
            file.writestr(f"{root}/{PROGRAM}", digest(job["source"]))
            file.writestr(f"{root}/{WEIGHTS}", "".join(f"{name}\t{at}\n" for name, at in places.items()))


def replaced(program, old, out):
    """The old package with other weights; why not, in a sentence."""
    with zipfile.ZipFile(old) as file:
        names = file.namelist()
        root = names[0].split("/")[0]
        if f"{root}/{PROGRAM}" not in names:
            return f"nothing in {old} says where its weights lie: it was compiled for a GPU, or by something else than enn"
        if file.read(f"{root}/{PROGRAM}").decode() != digest(job["source"]):
            return f"{old} is the code of another program: another architecture, batch or precision, or other columns"
        weights = known(program)
        [library] = [name for name in names if name.endswith(".wrapper.so")]
        bytes = bytearray(file.read(library))
        for line in file.read(f"{root}/{WEIGHTS}").decode().splitlines():
            name, at = line.split("\t")
            bytes[int(at) : int(at) + len(weights[name])] = weights[name]
        with zipfile.ZipFile(out, "w") as made:
            for entry in file.infolist():
                data = bytes if entry.filename == library else file.read(entry)
                made.writestr(zipfile.ZipInfo(entry.filename), data)
    return None


program = torch.export.load(job["source"])
if job["device"] != "cpu":
    from torch.export.passes import move_to_device_pass

    program = move_to_device_pass(program, job["device"])
package = os.path.join(job["scratch"], "package.pt2")
why = replaced(program, job["old"], package) if job["old"] else compiled(program, package)
if why:
    say({"refused": why})
    sys.exit()
about = torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1).get_metadata()
os.replace(package, job["out"])
say({"made": {"versions": versions, "about": about}})
