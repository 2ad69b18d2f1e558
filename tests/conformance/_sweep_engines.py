"""Artifacts of the sweep of exports in their own runtimes, by Python: `_sweep_engines.py JOBS.json` compares each with the answers that lie
beside it, and prints a line of JSON for each. Run by the Python that has the runtimes of the formats asked for.
"""

import contextlib
import functools
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

# Rows of a call, besides all at once; calls of each, the last rows first: these are the ones with something wrong in them.
CALLS, CALLS_EACH = (1, 2, 7), 12
# Where every call is computed operation by operation, in Python.
SLOW_CALLS_EACH = 1
# Units in the last place that an answer may be off whatever its spread is.
ROUNDING = 4 * np.finfo(np.float32).eps


def onnx(path, _):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [port.name for port in session.get_outputs()]
    return lambda given: dict(zip(names, session.run(names, given)))


def torch_module(load):
    import torch

    def made(path, said):
        module = load(torch, path)
        names = [port["name"] for port in said["outputs"]]

        def run(given):
            with torch.no_grad():
                out = module(*(torch.from_numpy(value) for value in given.values()))
            out = list(out.values()) if isinstance(out, dict) else out if isinstance(out, (list, tuple)) else [out]
            return {name: value.numpy() for name, value in zip(names, out, strict=True)}

        return run

    return made


@functools.lru_cache(maxsize=1)
def program(path):
    import torch

    return torch.export.load(path)


def pt2(path, said):
    return torch_module(lambda _, path: program(path).module())(path, said)


def made(archive, maker, **more):
    """What the script of `enn export` makes of an archive. What compilers prepare lies in one directory for all: it is done once."""
    path, told, scratch = f"{archive}.{maker}", [], Path(sys.argv[1]).parent / "scratch"
    scratch.mkdir(exist_ok=True)
    job = {"source": archive, "out": path, "scratch": str(scratch), **more}
    script = Path(__file__).resolve().parents[2] / "launcher" / "export" / "src" / "maker" / f"{maker}.py"
    # What its preamble has before it.
    before = {"os": os, "sys": sys, "json": json, "job": job, "versions": {}, "say": told.append}
    with contextlib.suppress(SystemExit):
        exec(compile(script.read_text(), script, "exec"), before)
    assert "made" in told[-1], told
    return path


def aoti(path, said):
    package = made(path, "aoti", device="cpu", old=None)
    return torch_module(lambda torch, path: torch._inductor.aoti_load_package(path))(package, said)


def executorch(path, said):
    # flatc is beside it.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = made(path, "executorch", delegate="xnnpack")
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(program).load_method("forward")
    return torch_module(lambda torch, _: lambda *given: method.execute(list(given)))(program, said)


def litert(path, _):
    from ai_edge_litert.interpreter import Interpreter

    # It resizes its inputs for every call.
    interpreter = Interpreter(path)
    call = interpreter.get_signature_runner("serving_default")
    return lambda given, _alive=interpreter: {name: np.array(value) for name, value in call(**given).items()}


def tensorflow(path, _):
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    call = loaded.signatures["serving_default"]
    constants = lambda given: {name: tf.constant(value) for name, value in given.items()}
    # The function lives as long as what it was loaded with.
    return lambda given, _alive=loaded: {name: value.numpy() for name, value in call(**constants(given)).items()}


def coreml(path, _):
    """No runtime, but coremltools' own value of each operation."""
    from coremltools.models.utils import load_spec
    from export_coreml import rebuilt

    spec, weights = load_spec(path), Path(path) / "Data/com.apple.CoreML/weights"
    return lambda given: rebuilt(spec, weights, given)


ENGINES = {"onnx": onnx, "ort": onnx, "pt2": pt2, "aoti": aoti, "executorch": executorch, "coreml": coreml, "litert": litert,
           "tensorflow": tensorflow}  # fmt: skip


def known_onnx(path):
    import onnx

    tensors = [(one.data_type, one.dims) for one in onnx.load(path).graph.initializer]
    return [(onnx.TensorProto.DataType.Name(kind), dims) for kind, dims in tensors]


def known_pt2(path):
    tensors = [*program(path).state_dict.values(), *program(path).constants.values()]
    return [(str(tensor.dtype), tensor.shape) for tensor in tensors]


def known_litert(path):
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(Path(path).read_bytes())
    graphs = [model.Subgraphs(at) for at in range(model.SubgraphsLength())]
    tensors = [graph.Tensors(at) for graph in graphs for at in range(graph.TensorsLength())]
    kinds = {value: name for name, value in vars(schema.TensorType).items()}
    return [(kinds[one.Type()], one.ShapeAsNumpy()) for one in tensors if model.Buffers(one.Buffer()).DataLength()]


def known_tensorflow(path):
    from tensorflow.core.framework.types_pb2 import DataType
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    [graph] = SavedModel.FromString((Path(path) / "saved_model.pb").read_bytes()).meta_graphs
    nodes = [*graph.graph_def.node, *(node for own in graph.graph_def.library.function for node in own.node_def)]
    tensors = [node.attr["value"].tensor for node in nodes if node.op == "Const"]
    return [(DataType.Name(one.dtype), [dim.size for dim in one.tensor_shape.dim]) for one in tensors]


def known_coreml(path):
    from coremltools.models.utils import load_spec
    from coremltools.proto import MIL_pb2

    block = load_spec(path).mlProgram.functions["main"].block_specializations["CoreML7"]
    types = [one.attributes["val"].type.tensorType for one in block.operations if one.type == "const"]
    return [(MIL_pb2.DataType.Name(one.dataType), [dim.constant.size for dim in one.dimensions]) for one in types]


# Element types and sizes of what a file holds, by its makers' own readers. onnxruntime's own form holds singles whatever it was made of.
KNOWN = {"onnx": known_onnx, "pt2": known_pt2, "litert": known_litert, "tensorflow": known_tensorflow, "coreml": known_coreml}
HALVES, SINGLES = {"fp16": ("float16", "half"), "bf16": ("bfloat16",)}, ("float32", "float")
# Numbers of the smallest matrix that is stored in half.
STORED_MIN = 16


def in_half(tensors, precision):
    """How many numbers of matrices and tables are in this half precision, and how many in single."""
    kinds = [(kind.lower().removeprefix("torch.").removeprefix("dt_"), int(np.prod(shape))) for kind, shape in tensors if len(shape) > 1]
    count = lambda names: sum(count for kind, count in kinds if kind in names and count >= STORED_MIN)
    return count(HALVES[precision]), count(SINGLES)


def size(dim, rows):
    """Of an axis of a port: a number, `batch`, or so many times that."""
    return dim if isinstance(dim, int) else int(dim.removesuffix("batch").removesuffix("*") or 1) * rows


class Model:
    """An artifact at work, and the differences that were found."""

    def __init__(self, run, said, case):
        self.run, self.said, self.case = run, said, case
        self.largest, self.sum, self.count, self.wrong = 0.0, 0.0, 0, None

    def call(self, x, states=None):
        """What is answered, and the states after it; without any, those before the first call of a stream."""
        zero = lambda port: np.zeros([size(dim, len(x)) for dim in port["shape"]], np.float32)
        ports = self.said["inputs"]
        given = {port["name"]: x if port["name"] == "x" else (states or {}).get(port["name"], zero(port)) for port in ports}
        out = self.run(given)
        return out, {name: out[f"next_{name}"] for name in given if name != "x"}

    def compare(self, found, expected, what):
        """Differences are in spreads of the targets, or in distances from their centre where an answer is far outside."""
        found = np.asarray(found)
        if found.dtype != np.float32 or found.shape != expected.shape:
            self.wrong = self.wrong or f"{what}: {found.dtype} {found.shape}, expected {expected.shape}"
            return
        with np.errstate(all="ignore"):
            same = (found == expected) | (np.isnan(found) & np.isnan(expected))
            unit = self.case["spread"] + np.abs(expected - self.case["centre"])
            off = np.where(same, 0, np.where(np.isfinite(found) & np.isfinite(expected), np.abs(found - expected) / unit, np.inf))
            within = off * unit <= self.said["verified"]["tolerance"] * unit + ROUNDING * np.abs(expected)
        within |= same
        self.largest, self.sum, self.count = max(self.largest, float(off.max(initial=0))), self.sum + float(off.sum()), self.count + off.size
        if not within.all() and not self.wrong:
            place = tuple(int(i) for i in np.argwhere(~within)[0])
            self.wrong = f"{what} at {place} is {found[place]}, the model says {expected[place]}"

    def check(self, calls_each):
        x, names = self.case["x"], [name for name in ("y", "quantiles") if name in self.case]
        for rows in (*CALLS, len(x)):
            starts = list(range(0, len(x), rows))[-calls_each:]
            for start in starts:
                part = slice(start, start + rows)
                out, _ = self.call(x[part])
                for name in names:
                    self.compare(out[name], self.case[name][part], f"{name} of rows {start}… in a call of {rows}")
        states = None
        for step, (given, expected) in enumerate(zip(self.case.get("steps", []), self.case.get("told", []))):
            out, states = self.call(given, states)
            self.compare(out["y"], expected, f"y of step {step}")


def tried(job):
    begun = time.process_time()
    path = Path(job["artifact"])
    said = json.loads(Path(f"{path}.json").read_text())
    model = Model(ENGINES[job["format"]](str(path), said), said, dict(np.load(job["case"])))
    model.check(SLOW_CALLS_EACH if job["format"] == "coreml" else CALLS_EACH)
    mean = model.sum / max(model.count, 1)
    wrong = model.wrong
    if said["precision"] in HALVES and job["format"] in KNOWN:
        half, single = in_half(KNOWN[job["format"]](str(path)), said["precision"])
        wrong = wrong or (f"{single} numbers of matrices are in single precision, {half} in {said['precision']}" if single > half / 4 else None)
    return {"largest": model.largest, "mean": mean, "wrong": wrong, "seconds_of_a_processor": time.process_time() - begun}


def main():
    for job in json.loads(Path(sys.argv[1]).read_text()):
        try:
            found = tried(job)
        except Exception as error:  # noqa: BLE001
            found = {"wrong": f"{type(error).__name__}: {error}"}
        print(json.dumps({"name": job["name"], "format": job["format"], **found}), flush=True)


if __name__ == "__main__":
    main()
