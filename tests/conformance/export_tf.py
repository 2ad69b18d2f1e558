"""SavedModels and LiteRT files that enn writes run in TensorFlow and in LiteRT, at any batch in one loaded model, and say what the
graph says: by Python, by TensorFlow's own converter, and by enn's own runners.

TensorFlow is large: this one makes target/venv-tf, once, and goes on there.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _environment import go_on_in

BIN = Path(os.environ.get("ENN_BIN_DIR", "target/release"))
SECONDS_MAX = 500
# Of a number of size 1; what f32 loses in a sum of a few hundred products.
APART_MAX = 1e-4


def array(told):
    import numpy as np

    bits = np.array(told["bits"], np.uint32).reshape(told["shape"])
    return bits.astype(np.int64) if told["whole"] else bits.view(np.float32)


def apart(found, expected):
    """How far two arrays lie apart, in units of 1 + the expected number; infinite where shapes or what is missing differ."""
    import numpy as np

    if found.shape != expected.shape or (np.isnan(found) != np.isnan(expected)).any():
        return float("inf")
    same = (found == expected) | np.isnan(expected)
    with np.errstate(invalid="ignore"):
        return float(np.where(same, 0, np.abs(found - expected) / (1 + np.abs(expected))).max(initial=0))


def tried(run, case):
    """The largest distance over all batches, in the order in which they are given."""
    worst = 0.0
    for batch in case["batches"]:
        found = run({port["name"]: array(port) for port in batch["inputs"]})
        for port in batch["outputs"]:
            shape = batch["inputs"][0]["shape"]
            distance = apart(found[port["name"]], array(port))
            assert distance < APART_MAX, f"{case['name']}: {port['name']} of inputs {shape} is {distance:.2e} apart"
            worst = max(worst, distance)
    return worst


def saved_model(place, _):
    """TensorFlow, as a serving system calls it."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(place / "saved"))
    assert list(loaded.signatures) == ["serving_default"] and not list(getattr(loaded, "variables", [])), loaded
    function = loaded.signatures["serving_default"]
    for spec in function.structured_input_signature[1].values():
        assert None in spec.shape, f"the batch is open: {spec}"
    constants = lambda inputs: {name: tf.constant(value) for name, value in inputs.items()}
    # The function lives as long as what it was loaded with.
    return lambda inputs, _loaded=loaded: {name: value.numpy() for name, value in function(**constants(inputs)).items()}


def interpreted(content, resolver):
    """LiteRT's interpreter; inputs are resized for every call."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=OpResolverType[resolver])
    assert list(interpreter.get_signature_list()) == ["serving_default"]
    call = interpreter.get_signature_runner("serving_default")
    kinds = {name: details["dtype"] for name, details in call.get_input_details().items()}
    return lambda inputs: call(**{name: value.astype(kinds[name]) for name, value in inputs.items()})


def litert(resolver):
    def load(place, case):
        return interpreted((place / "model.tflite").read_bytes(), resolver)
    return load


def converted(place, case):
    """TensorFlow's own converter, from our SavedModel; it has fewer axes and types."""
    import tensorflow as tf

    if not case["edge"]:
        return interpreted(tf.lite.TFLiteConverter.from_saved_model(str(place / "saved")).convert(), "AUTO")


# XNNPACK takes over what it can of a file, so that the plain kernels need a try of their own.
WAYS = {
    "SavedModel by TensorFlow": saved_model,
    "LiteRT with XNNPACK": litert("AUTO"),
    "LiteRT without": litert("BUILTIN_WITHOUT_DEFAULT_DELEGATES"),
    "LiteRT's reference kernels": litert("BUILTIN_REF"),
    "LiteRT by TensorFlow's converter from the SavedModel": converted,
}


def check_twice(place, case):
    """Equal models give equal bytes."""
    pairs = [("saved/saved_model.pb", "again/saved_model.pb"), ("saved/assets.extra/enn.json", "again/assets.extra/enn.json")]
    for one, other in [*pairs, ("model.tflite", "again.tflite")]:
        assert (place / one).read_bytes() == (place / other).read_bytes(), f"{case['name']}: {one} is written in two ways"


def check_about(place):
    """What is said of a model is found in its file."""
    from ai_edge_litert import schema_py_generated as schema

    told = json.loads((place / "saved/assets.extra/enn.json").read_text())
    model = schema.ModelT.InitFromPackedBuf((place / "model.tflite").read_bytes())
    assert [entry.name for entry in model.metadata] == [b"enn.json"]
    assert json.loads(bytes(model.buffers[model.metadata[0].buffer].data)) == told == {"enn.sample": "neg"}, told


RUN = """
name = "kinds"
[data]
files = ["kinds.csv"]
[data.rows]
features = ["a", "b", { column = "town", kind = "category" }, { column = "ward", kind = "index", offset = 10, rows = 14 },
  { column = "soil", kind = "category", encoding = "one_hot" }, { column = "signs", kind = "labels", separator = ";" }]
targets = ["y"]
[data.split]
kind = "random"
val = 0.2
test = 0.4
[model]
d_model = 16
heads = 2
spatial_depth = 1
temporal_depth = 1
spatial_latents = 2
temporal_latents = 2
fuser_latents = 2
collector_depth = 1
patch = [1]
[train]
epochs = 1
threads = 1
[cluster]
device = "cpu"
nproc_per_node = 1
"""


def check_run(root):
    """A trained run with columns of every kind: `enn export` compares the artifacts with the model on its test rows. TensorFlow divides by
    multiplying, so that whole numbers come out beside themselves once there are a few columns."""
    place = root / "run"
    place.mkdir()
    rows = [f"{i * 7 % 13},{i % 29},t{i % 7},{10 + i * 5 % 14},s{i % 3},{';'.join('abcdef'[j] for j in range(6) if i >> j & 1)},{i % 14}" for i in range(300)]
    (place / "kinds.csv").write_text("a,b,town,ward,soil,signs,y\n" + "\n".join(rows) + "\n")
    (place / "kinds.toml").write_text(RUN)
    enn = BIN.resolve() / "enn"
    environment = {**os.environ, "ENN_RUNTIMES": sys.prefix}
    run = lambda *args: subprocess.run([enn, *args, "--runs-dir", "runs"], cwd=place, env=environment, check=True, timeout=SECONDS_MAX, capture_output=True, text=True).stdout
    run("train", "kinds.toml", "--quiet")
    found = json.loads(run("export", "latest", "--to", "litert,tensorflow", "--out", "out", "--json"))["exported"]
    assert {one["format"]: one["sidecar"]["verified"]["level"] for one in found} == {"litert": "runtime", "tensorflow": "runtime"}, found
    print("a run with columns of every kind: its SavedModel and LiteRT file answer as it does", flush=True)


def main():
    import absl.logging

    absl.logging.set_verbosity(absl.logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        check_run(root)
        subprocess.run([BIN / "tf_fixture", "write", root], check=True, timeout=SECONDS_MAX)
        cases = json.loads((root / "cases.json").read_text())
        places = [root / f"{number:02}" for number in range(len(cases))]
        for what, load in WAYS.items():
            runs = [(load(place, case), case) for place, case in zip(places, cases)]
            found = [tried(run, case) for run, case in runs if run]
            assert len(found) >= sum(not case["edge"] for case in cases) > 80, what
            print(f"{what}: {len(found)} samples, at most {max(found):.2e} apart", flush=True)
        for place, case in zip(places, cases):
            check_twice(place, case)
        check_about(places[0])
        subprocess.run([BIN / "tf_fixture", "run", root, sys.prefix], check=True, timeout=SECONDS_MAX)


if __name__ == "__main__":
    if sys.argv[1:] == ["here"]:
        main()
    else:
        # TensorFlow says what it found of the machine, and looks for a GPU.
        go_on_in("tf", __file__, SECONDS_MAX, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="")
