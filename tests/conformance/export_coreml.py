"""Core ML packages that enn writes are what coremltools says, and give by its value inference what the graph gives.

coremltools computes with an older NumPy than the other checks: this one makes target/venv-coreml, once, and goes on there.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _environment import go_on_in

BIN = Path(os.environ.get("ENN_BIN_DIR", "target/release"))
SECONDS_MAX = 300
TOLERANCE = 1e-5


def fixture(*args):
    done = subprocess.run([BIN / "coreml_fixture", *map(str, args)], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, f"coreml_fixture {args}: {done.stderr}"
    return done.stdout


def array(told):
    import numpy as np

    return np.array(told["values"], np.float32).reshape(told["shape"])


def rebuilt(spec, weights, inputs):
    """The outputs by name, of the program built again operation by operation; with known inputs every value is known."""
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil._deployment_compatibility import AvailableTarget
    from coremltools.converters.mil.frontend.milproto import load
    from coremltools.converters.mil.mil import Function, Placeholder, types

    function = spec.mlProgram.functions["main"]
    context = load.TranscriptionContext(str(weights))
    with Function({"unused": Placeholder((1,), types.fp32, name="unused")}, opset_version=AvailableTarget(spec.specificationVersion)):
        for port in function.inputs:
            context.register_var_with_name(port.name, mb.const(val=inputs[port.name]))
        block = function.block_specializations[function.opset]
        load._load_block(context, block)
        return {name: context.get_var_from_name(name).val for name in block.outputs}


def check_form(told, package):
    """The specification as coremltools loads it; its types fit what each operation makes, with the batch open."""
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto import load
    from coremltools.models.utils import load_spec

    spec, weights = load_spec(str(package)), package / "Data/com.apple.CoreML/weights"
    assert spec.specificationVersion == ct._SPECIFICATION_VERSION_IOS_17
    assert dict(spec.description.metadata.userDefined) == {"enn.sample": told["name"]}
    program = load.load(spec, spec.specificationVersion, str(weights))
    program.validate()
    for port in spec.description.input:
        sizes = port.type.multiArrayType.shapeRange.sizeRanges
        assert (sizes[0].lowerBound, sizes[0].upperBound) == (1, 4096), port
        assert [size.lowerBound for size in sizes[1:]] == list(port.type.multiArrayType.shape)[1:], port
    ours = json.loads(fixture("check", package))
    operations = spec.mlProgram.functions["main"].block_specializations["CoreML7"].operations
    assert ours["operations"] == len(operations), (ours, len(operations))
    ct.models.MLModel(str(package), skip_model_load=True)
    return spec, weights


def check_answers(told, spec, weights):
    import numpy as np

    worst = 0.0
    for case in told["cases"]:
        found = rebuilt(spec, weights, {name: array(value) for name, value in case["inputs"].items()})
        assert sorted(found) == sorted(case["outputs"]), (told["name"], list(found))
        for name, value in case["outputs"].items():
            expected = array(value)
            assert found[name] is not None, f"{told['name']}: coremltools does not compute {name}"
            assert found[name].shape == expected.shape, (told["name"], found[name].shape, expected.shape)
            error = np.abs(found[name] - expected) / np.maximum(1, np.abs(expected))
            worst = max(worst, float(error.max(initial=0)))
            assert worst <= TOLERANCE, (told["name"], name, worst)
    return worst


def check_that_it_can_fail(told, package):
    """A weight that is another one is noticed."""
    file = package / "Data/com.apple.CoreML/weights/weight.bin"
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 0x40
    file.write_bytes(damaged)
    try:
        check_answers(told, *check_form(told, package))
    except AssertionError:
        return
    raise AssertionError("a wrong weight went unnoticed")


def main():
    with tempfile.TemporaryDirectory() as folder:
        fixture("write", folder)
        worst, count = 0.0, 0
        for package in sorted(Path(folder).glob("*.mlpackage")):
            told = json.loads(package.with_suffix(".json").read_text())
            spec, weights = check_form(told, package)
            worst = max(worst, check_answers(told, spec, weights))
            count += 1
        assert told["name"] == "a small model", told["name"]
        check_that_it_can_fail(told, package)
        assert count > 50, count
        print(f"{count} samples at batches of 1, 2 and 7: coremltools differs by {worst:.1e}")


if __name__ == "__main__":
    if "here" in sys.argv[1:]:
        main()
    else:
        go_on_in("coreml", __file__, SECONDS_MAX)
