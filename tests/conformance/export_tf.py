"""SavedModel and LiteRT: what is written for every sample runs in TensorFlow and in LiteRT, at any batch, in one loaded model.

TensorFlow has a Python of its own (`make venv-tf`): $ENN_TF_PYTHON, or target/venv-tf.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("ENN_TF_PYTHON") or ROOT / "target/venv-tf/bin/python")
BIN = Path(os.environ.get("ENN_BIN_DIR") or ROOT / "target/release")
# Of a number of size 1; what f32 loses in a sum of a few hundred products.
APART_MAX = 1e-4


def numbers(port):
    import numpy as np
    bits = np.array(port["bits"], dtype=np.uint32).reshape(port["shape"])
    return bits.astype(np.int64) if port["whole"] else bits.view(np.float32)


def apart(found, expected):
    """How far two arrays lie apart, in units of 1 + the expected number; infinite where shapes or what is missing differ."""
    import numpy as np
    if found.shape != expected.shape or (np.isnan(found) != np.isnan(expected)).any():
        return float("inf")
    same = (found == expected) | np.isnan(expected)
    with np.errstate(invalid="ignore"):
        return float(np.where(same, 0, np.abs(found - expected) / (1 + np.abs(expected))).max(initial=0))


def tried(what, run, case):
    """The largest distance over all batches, in the order in which they are given."""
    worst = 0.0
    for batch in case["batches"]:
        found = run({port["name"]: numbers(port) for port in batch["inputs"]})
        for port in batch["outputs"]:
            name, rows = port["name"], batch["inputs"][0]["shape"][0]
            distance = apart(found[name], numbers(port))
            assert distance < APART_MAX, f"{what}: {case['name']}: output {name} of {rows} rows is {distance:.2e} apart"
            worst = max(worst, distance)
    return worst


def saved_model(place):
    """TensorFlow, as a serving system calls it."""
    import tensorflow as tf
    loaded = tf.saved_model.load(str(place / "saved"))
    assert list(loaded.signatures) == ["serving_default"], list(loaded.signatures)
    function = loaded.signatures["serving_default"]
    assert not loaded.variables, "weights are constants"
    for spec in function.structured_input_signature[1].values():
        assert None in spec.shape, f"the batch is open: {spec}"

    def run(inputs, keep=loaded):
        return {name: value.numpy() for name, value in function(**{n: tf.constant(v) for n, v in inputs.items()}).items()}
    return run


def litert(content):
    """LiteRT's interpreter; inputs are resized for every call."""
    from ai_edge_litert.interpreter import Interpreter
    interpreter = Interpreter(model_content=content)
    runner = interpreter.get_signature_list()
    assert list(runner) == ["serving_default"], runner
    call = interpreter.get_signature_runner("serving_default")
    kinds = {name: details["dtype"] for name, details in call.get_input_details().items()}
    return lambda inputs: call(**{name: value.astype(kinds[name]) for name, value in inputs.items()})


def converted(place):
    """TensorFlow's own converter, from our SavedModel."""
    import tensorflow as tf
    return tf.lite.TFLiteConverter.from_saved_model(str(place / "saved")).convert()


def judge(root):
    import absl.logging
    absl.logging.set_verbosity(absl.logging.ERROR)
    cases = json.loads((root / "cases.json").read_text())
    worst = {"SavedModel in TensorFlow": 0.0, "LiteRT": 0.0, "TFLiteConverter's from our SavedModel": 0.0}
    for number, case in enumerate(cases):
        place = root / f"{number:02}"
        ways = {"SavedModel in TensorFlow": lambda: saved_model(place),
                "LiteRT": lambda: litert((place / "model.tflite").read_bytes()),
                "TFLiteConverter's from our SavedModel": lambda: litert(converted(place))}
        for what, load in ways.items():
            if os.environ.get("ENN_KEEP_GOING"):
                try:
                    worst[what] = max(worst[what], tried(what, load(), case))
                except Exception as error:
                    print(f"FAIL {what}: {case['name']}: {str(error)[:300]}", flush=True)
                continue
            worst[what] = max(worst[what], tried(what, load(), case))
        for one, other in [("saved/saved_model.pb", "again/saved_model.pb"), ("saved/assets.extra/enn.json", "again/assets.extra/enn.json"),
                           ("model.tflite", "again.tflite")]:
            assert (place / one).read_bytes() == (place / other).read_bytes(), f"{case['name']}: {one} is written in two ways"
    for what, distance in worst.items():
        print(f"{what}: {len(cases)} samples, at most {distance:.2e} apart")


def main():
    if sys.argv[1:2] == ["judge"]:
        return judge(Path(sys.argv[2]))
    assert PYTHON.exists(), f"{PYTHON} is not there\nhint: make venv-tf, or set ENN_TF_PYTHON to a Python with tensorflow and ai-edge-litert"
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([BIN / "export_tf", "write", name], check=True)
        subprocess.run([PYTHON, __file__, "judge", name], check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""})


if __name__ == "__main__":
    main()
