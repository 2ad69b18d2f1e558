"""PT2 archives that ENN wrote, in PyTorch: every sample, a trained model and the golden file are loaded, checked, run, decomposed,
made modules again and saved again."""

import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
BINARIES = Path(os.environ.get("ENN_BIN_DIR", HERE.parents[1] / "target/release"))
GOLDEN = HERE.parents[1] / "launcher/export/src/pt2/golden/corners.pt2"
TOLERANCE = 1e-5
ROWS_MAX = 4096


KINDS = {"f32": torch.float32, "i64": torch.int64}


def tensors(arrays):
    return [torch.tensor(array["values"], dtype=torch.float64).reshape(array["shape"]) for array in arrays]


def answers(module, inputs, names):
    with torch.no_grad():
        out = module(*inputs)
    return [out[name] for name in names] if len(names) > 1 else [out]


def agree(module, sample, what):
    for case in sample["cases"]:
        inputs = [x.to(KINDS[kind]) for x, kind in zip(tensors(case["inputs"]), sample["inputs"], strict=True)]
        for found, wanted in zip(answers(module, inputs, sample["outputs"]), tensors(case["outputs"]), strict=True):
            torch.testing.assert_close(found.to(torch.float64), wanted, rtol=TOLERANCE, atol=TOLERANCE,
                                       msg=lambda m: f"{what}: {m}")


def refused(module, inputs, what):
    try:
        module(*inputs)
    except (AssertionError, RuntimeError):
        return
    raise SystemExit(f"{what} was taken")


def guards(module, inputs, sample):
    """More rows than the archive says, and another width."""
    name, (one, two, *_) = sample["name"], [case["inputs"][0]["shape"] for case in sample["cases"]]
    if one[-1] != two[-1]:
        return
    rows = [x[:1].expand(ROWS_MAX + 1, *x.shape[1:]).contiguous() for x in inputs]
    refused(module, rows, f"{name}: {ROWS_MAX + 1} rows")
    wide = [torch.cat([x, x], dim=-1) for x in inputs]
    refused(module, wide, f"{name}: twice the width")


def schema(path, name):
    """What no loader complains of: arguments are those of the operators' schemas, those behind a `*` by name."""
    with zipfile.ZipFile(path) as file:
        program = json.loads(file.read(next(n for n in file.namelist() if n.endswith("models/model.json"))))
        sample = next(n for n in file.namelist() if n.endswith("sample_inputs/model.pt"))
        args, kwargs = torch.load(io.BytesIO(file.read(sample)), weights_only=True)
    assert isinstance(args, tuple) and kwargs == {}, name
    for node in program["graph_module"]["graph"]["nodes"]:
        given = [(argument["name"], argument["kind"]) for argument in node["inputs"]]
        if node["target"].startswith("_operator."):
            assert given == [("a", 1), ("b", 1)], f"{name}: {given}"
            continue
        _, _, namespace, operator, overload = node["target"].split(".")
        found = getattr(getattr(getattr(torch.ops, namespace), operator), overload)._schema.arguments
        wanted = {argument.name: 2 if argument.kwarg_only else 1 for argument in found}
        assert all(wanted.get(key) == kind for key, kind in given), f"{name}: {node['target']} {given}"
    return args


def one(folder, sample):
    path, name = folder / sample["file"], sample["name"]
    args = schema(path, name)
    extra = {"about.json": ""}
    program = torch.export.load(path, extra_files=extra)
    assert json.loads(extra["about.json"]) == {"samples": True}, name
    program.validate()
    module = program.module()
    agree(module, sample, name)
    guards(module, args, sample)
    agree(program.run_decompositions().module(), sample, f"{name}, decomposed")
    agree(torch.export.unflatten(program), sample, f"{name}, unflattened")
    again = io.BytesIO()
    torch.export.save(program, again)
    again.seek(0)
    agree(torch.export.load(again).module(), sample, f"{name}, saved again")


def golden():
    program = torch.export.load(GOLDEN)
    program.validate()
    weights = program.state_dict
    assert set(weights) == {"a.weight", "b.weight", "narrow", "brain", "whole"}, set(weights)
    assert weights["a.weight"].data_ptr() == weights["b.weight"].data_ptr(), "shared weights are apart"
    kinds = [weights[name].dtype for name in ("narrow", "brain", "whole")]
    assert kinds == [torch.float16, torch.bfloat16, torch.int64], kinds
    constants = program.constants
    assert constants["truth"].tolist() == [True, False, True] and constants["empty"].shape == (0, 4)
    assert any(value.ndim == 0 and value.item() == float("inf") for value in constants.values())
    assert [p for p, _ in program.named_parameters()] == ["a.weight", "b.weight"]
    x = torch.tensor([[1.0, -2.0]])
    once = x @ weights["a.weight"].T
    torch.testing.assert_close(program.module()(x), torch.minimum(once @ weights["b.weight"].T, torch.tensor(float("inf"))))


CONFIGURATION = """
name = "whole"
seed = 5
[data]
files = ["rows.csv"]
[data.rows]
features = ["a", "b", "c"]
targets = ["y"]
row_id = "id"
[model]
d_model = 16
heads = 2
fuser_rounds = 1
[train]
epochs = 1
batch = 24
threads = 1
[cluster]
device = "cpu"
"""


def enn(*arguments, folder):
    done = subprocess.run([BINARIES / "enn", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"enn {arguments}: {done.stdout}{done.stderr}"


def whole(folder):
    """A trained model as `enn export` leaves it; that it answers as the model does was checked there."""
    rows = [f"{n},{n % 7 - 3},{n % 11 / 11:.3f},{n % 13 - 6},{n % 7 * (n % 11) / 9:.3f}" for n in range(400)]
    (folder / "rows.csv").write_text("id,a,b,c,y\n" + "\n".join(rows) + "\n")
    (folder / "whole.toml").write_text(CONFIGURATION)
    enn("train", "whole.toml", "--quiet", "--nproc-per-node", "1", "--runs-dir", "runs", folder=folder)
    enn("export", "latest", "--runs-dir", "runs", "--to", "pt2", "--out", "out", folder=folder)
    (path,) = (folder / "out").glob("*.pt2")
    args = schema(path, "whole")
    program = torch.export.load(path)
    program.validate()
    again = io.BytesIO()
    torch.export.save(program, again)
    again.seek(0)
    others = {
        "decomposed": program.run_decompositions().module(),
        "unflattened": torch.export.unflatten(program),
        "saved again": torch.export.load(again).module(),
    }
    module = program.module()
    generator = torch.Generator().manual_seed(7)
    inputs = [torch.randn(300, *x.shape[1:], generator=generator).to(x.dtype) for x in args]
    inputs[0][5, 1] = float("nan")
    rowwise = lambda out: list(out.values()) if isinstance(out, dict) else [out]
    with torch.no_grad():
        expected = rowwise(module(*inputs))
        assert all(torch.isfinite(output).all() for output in expected), "a missing number is answered with one"
        for name, other in others.items():
            torch.testing.assert_close(rowwise(other(*inputs)), expected, rtol=1e-4, atol=1e-4, msg=lambda m: f"{name}: {m}")
        for count in (1, 2, 7):
            found = rowwise(module(*[x[:count] for x in inputs]))
            torch.testing.assert_close(found, [output[:count] for output in expected], rtol=1e-4, atol=1e-4)
    refused(module, [x[:1].expand(ROWS_MAX + 1, *x.shape[1:]).contiguous() for x in inputs], "whole: more rows than it takes")


def main():
    warnings.filterwarnings("ignore")
    golden()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        whole(folder)
        subprocess.run([BINARIES / "examples/samples", "pt2", folder], check=True)
        samples = json.loads((folder / "samples.json").read_text())
        for sample in samples:
            one(folder, sample)
    print(f"{len(samples)} archives")


if __name__ == "__main__":
    sys.exit(main())
