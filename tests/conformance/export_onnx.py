"""ONNX files that enn writes are what the standard says, and give in its reference and in onnxruntime what the graph gives."""

import hashlib
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

FIXTURE = Path(os.environ.get("ENN_BIN_DIR", "target/release")) / "onnx_fixture"
# Where the library lies that this Python's onnxruntime came with.
PLACE = Path(onnxruntime.__file__).parents[1]
SECONDS_MAX = 120
# Relative where numbers are larger than 1; f32 against f64.
DIFFERENCE_MAX = 1e-5


def fixture(*args):
    done = subprocess.run([FIXTURE, *map(str, args)], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, f"onnx_fixture {args}: {done.stderr}"
    return done.stdout


def array(told):
    # Numbers that JSON does not have are texts.
    return np.array([float(value) for value in told["values"]], np.float32).reshape(told["shape"])


def ports(told):
    return {port["name"]: array(port) for port in told}


def samples(folder):
    """Name, file and cases of each sample: a case is inputs and outputs by name, in the graph's order."""
    for path in sorted(Path(folder).glob("*.onnx")):
        told = json.loads(path.with_suffix(".json").read_text())
        yield told["name"], path, [(ports(case["inputs"]), ports(case["outputs"])) for case in told["cases"]]


def check_form(name, path):
    """What the standard demands, and that sizes and types are those that it infers."""
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path)
    assert model.ir_version == 8 and [(o.domain, o.version) for o in model.opset_import] == [("", 18)]
    assert {entry.key: entry.value for entry in model.metadata_props} == {"enn.sample": name}
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    sizes = lambda port: [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in port.type.tensor_type.shape.dim]
    inferred = onnx.shape_inference.infer_shapes(bare, check_type=True, strict_mode=True, data_prop=True)
    ours = {port.name: port for port in [*model.graph.value_info, *model.graph.output]}
    for port in inferred.graph.value_info:
        if port.name not in ours:
            continue
        assert port.type.tensor_type.elem_type == ours[port.name].type.tensor_type.elem_type, (name, port.name)
        ours_sizes, theirs = sizes(ours[port.name]), sizes(port)
        # What follows the batch may have no name, or one of its own, where it was inferred.
        fixed = lambda size: isinstance(size, int)
        same = len(ours_sizes) == len(theirs) and all(not fixed(b) or a == b for a, b in zip(ours_sizes, theirs))
        assert same, (name, port.name, ours_sizes, theirs)


def differ(found, expected):
    """The largest difference, relative where numbers are large."""
    assert found.shape == expected.shape and found.dtype == np.float32, (found.shape, found.dtype, expected.shape)
    assert np.array_equal(np.isnan(found), np.isnan(expected)), (found, expected)
    infinite = np.isinf(expected)
    assert np.array_equal(found[infinite], expected[infinite]), (found, expected)
    finite = np.isfinite(expected)
    error = np.abs(found[finite] - expected[finite]) / np.maximum(1, np.abs(expected[finite]))
    return float(error.max(initial=0))


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def worst(found, outputs):
    """The largest difference of answers, by name, from those expected."""
    assert list(found) == list(outputs), (list(found), list(outputs))
    return max(differ(np.asarray(found[name]), outputs[name]) for name in outputs)


def answers_of(run, outputs, inputs):
    return dict(zip(outputs, run(list(outputs), inputs), strict=True))


def in_rust(path):
    """What enn's own runner gives, and its version."""
    told = json.loads(fixture("run", PLACE, path))
    return told["version"], [ports(case) for case in told["cases"]]


def check_answers(name, path, cases):
    """In one loaded model, at every batch; the largest differences, by runtime."""
    found = {"onnxruntime": 0.0, "onnx.reference": 0.0, "enn": 0.0, "enn, .ort": 0.0}
    ours, reference = session(path), ReferenceEvaluator(str(path))
    compact = path.with_suffix(".ort")
    fixture("ort", PLACE, path, compact)
    (version, rust), (_, rust_compact) = in_rust(path), in_rust(compact)
    assert version == f"onnxruntime {onnxruntime.__version__}", version
    with np.errstate(all="ignore"):
        for at, (inputs, outputs) in enumerate(cases):
            given = [answers_of(ours.run, outputs, inputs), answers_of(reference.run, outputs, inputs), rust[at], rust_compact[at]]
            for runtime, one in zip(found, given):
                found[runtime] = max(found[runtime], worst(one, outputs))
    assert max(found.values()) <= DIFFERENCE_MAX, (name, found)
    return found


def check_a_wrong_weight_shows(folder):
    """The check itself: one weight of the whole model that is a little off is seen."""
    name, path, cases = next(sample for sample in samples(folder) if sample[0] == "a small model")
    model = onnx.load(path)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "norm.weight")
    values = onnx.numpy_helper.to_array(weight).copy()
    values[3] += 1e-3
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    spoiled = path.with_name("spoiled.onnx")
    onnx.save(model, spoiled)
    inputs, outputs = cases[0]
    found = worst(answers_of(session(spoiled).run, outputs, inputs), outputs)
    assert found > DIFFERENCE_MAX, found
    spoiled.unlink()
    return found


def check_equal_bytes(one, other):
    """Two writes give the same files."""
    digest = lambda folder: {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(folder).iterdir()}
    assert digest(one) == digest(other)


def check_halved(kind, folder):
    """Half precision inside is what the standard allows; onnxruntime on a CPU has f16 only. A rounded number may be another integer."""
    found, tolerance = 0.0, {"f16": 1e-2, "bf16": 5e-2}[kind]
    for name, path, cases in samples(folder):
        check_form(name, path)
        if "integers" in name or "table" in name:
            continue
        run = session(path).run if kind == "f16" else ReferenceEvaluator(str(path)).run
        with np.errstate(all="ignore"):
            one = max(worst(answers_of(run, outputs, inputs), outputs) for inputs, outputs in cases)
        assert one <= tolerance, (kind, name, one)
        found = max(found, one)
    return found


def check_outside(folder):
    """Tensors beside the model: aligned, and found by every reader."""
    (name, path, cases), = samples(folder)
    check_form(name, path)
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    outside = [tensor.name for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL]
    assert outside == ["layers.0.weight.T", "layers.1.weight.T", "layers.2.weight.T", "head.weight"], outside
    for tensor in tensors:
        place = {entry.key: entry.value for entry in tensor.external_data}
        assert not place or int(place["offset"]) % 64 == 0, place
    [beside] = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    assert re.fullmatch(re.escape(path.name) + r"\.[0-9a-f]{16}\.data", beside), beside
    found = check_answers(name, path, cases)
    path.with_name(beside).unlink()
    assert refused("run", PLACE, path).startswith(f"onnxruntime refused {path}: ")
    return found


def refused(*args):
    """What the fixture says when it fails, which is an error and no crash."""
    done = subprocess.run([FIXTURE, *map(str, args)], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 1, (args, done.returncode, done.stderr)
    return done.stderr


def check_errors(folder):
    path = next(path for name, path, _ in samples(folder) if name == "a small model")
    compact = path.with_suffix(".ort")
    fixture("ort", PLACE, path, compact)
    broken = Path(folder) / "broken"
    cases = path.with_suffix(".json").read_text()
    for source in (path, compact):
        whole = source.read_bytes()
        for cut in (0, 7, len(whole) // 3):
            part = broken.with_suffix(source.suffix)
            part.write_bytes(whole[:cut])
            broken.with_suffix(".json").write_text(cases)
            said = refused("run", PLACE, part)
            assert said.startswith(f"onnxruntime refused {part}: ") and said.count("\n") == 1, said
    before = sorted(Path(folder).iterdir())
    part = broken.with_suffix(".onnx")
    assert refused("ort", PLACE, part, broken.with_name("none.ort")).startswith(f"onnxruntime refused {part}: ")
    assert sorted(Path(folder).iterdir()) == before, "half a file"
    told = json.loads(cases)
    for spoil in ("name", "shape"):
        wrong = json.loads(cases)
        port = wrong["cases"][0]["inputs"][0]
        if spoil == "name":
            port["name"] = "other"
        else:
            port["shape"] = port["shape"][::-1] if len(set(port["shape"])) > 1 else [*port["shape"], 1]
        path.with_suffix(".json").write_text(json.dumps(wrong))
        assert refused("run", PLACE, path).startswith(f"onnxruntime refused {path}: ")
    path.with_suffix(".json").write_text(json.dumps(told))
    library = broken.with_name("libonnxruntime.so")
    said = refused("run", library, path)
    assert said.startswith("onnxruntime is not available: libonnxruntime.so was not found: "), said
    library.write_text("no library")
    said = refused("run", library, path)
    assert said.startswith(f"onnxruntime is not available: {library}: ") and "hint: " in said, said


def main():
    with tempfile.TemporaryDirectory() as folder:
        one, other, apart, f16, bf16 = (Path(folder) / name for name in ("one", "other", "apart", "f16", "bf16"))
        for kind, where in (("write", one), ("write", other), ("split", apart), ("f16", f16), ("bf16", bf16)):
            where.mkdir()
            fixture(kind, where)
        check_equal_bytes(one, other)
        every = []
        for name, path, cases in samples(one):
            check_form(name, path)
            every.append(check_answers(name, path, cases))
        assert len(every) > 50, len(every)
        print(f"{len(every)} samples; largest differences:", {runtime: f"{max(row[runtime] for row in every):.1e}" for runtime in every[0]})
        print(f"a weight that is 1e-3 off: {check_a_wrong_weight_shows(one):.1e}")
        for kind, where in (("f16", f16), ("bf16", bf16)):
            print(f"{kind} inside: {check_halved(kind, where):.1e}")
        outside = max(check_outside(apart).values())
        print(f"tensors outside their model: {outside:.1e}")
        check_errors(other)


if __name__ == "__main__":
    main()
