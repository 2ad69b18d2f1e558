"""ONNX files that enn writes are what the standard says, and give in its reference and in onnxruntime what the graph gives."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

FIXTURE = Path(os.environ.get("ENN_BIN_DIR", "target/release")) / "onnx_fixture"
SECONDS_MAX = 120


def fixture(*args):
    done = subprocess.run([FIXTURE, *map(str, args)], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, f"onnx_fixture {args}: {done.stderr}"
    return done.stdout


def array(told):
    # Numbers that JSON does not have are texts.
    return np.array([float(value) for value in told["values"]], np.float32).reshape(told["shape"])


def samples(folder):
    """Name, file and cases of each sample: a case is the inputs by name, and the outputs in their order."""
    for path in sorted(Path(folder).glob("*.onnx")):
        told = json.loads(path.with_suffix(".json").read_text())
        names = [port.name for port in onnx.load(path, load_external_data=False).graph.input]
        cases = [(dict(zip(names, map(array, case["inputs"]), strict=True)), list(map(array, case["outputs"]))) for case in told["cases"]]
        yield told["name"], path, cases


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


def check_answers(name, path, cases):
    """In one loaded model, at every batch; the largest differences of onnxruntime and of the reference."""
    ours, reference = session(path), ReferenceEvaluator(str(path))
    worst = [0.0, 0.0]
    with np.errstate(all="ignore"):
        for inputs, outputs in cases:
            for at, run in enumerate([ours.run, reference.run]):
                for found, expected in zip(run(None, inputs), outputs, strict=True):
                    worst[at] = max(worst[at], differ(np.asarray(found), expected))
    assert max(worst) <= 1e-5, (name, worst)
    return worst


def main():
    with tempfile.TemporaryDirectory() as folder:
        fixture("write", folder)
        worst, count = [0.0, 0.0], 0
        for name, path, cases in samples(folder):
            check_form(name, path)
            worst = [max(pair) for pair in zip(worst, check_answers(name, path, cases))]
            count += 1
        assert count > 50, count
        print(f"{count} samples: onnxruntime differs by {worst[0]:.1e}, the reference by {worst[1]:.1e}")


if __name__ == "__main__":
    main()
