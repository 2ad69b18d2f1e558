"""The configurations of the sweep of exports (export_sweep.py): tables to learn, new rows with everything that may be wrong with one, and
the models that are made of them. No two compute the same.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

ROWS, NEW_ROWS = 240, 24
# Spreads from its mean of a number that no training row comes near.
FAR = 1e9
# The configuration that half precision is most likely to be wrong for.
LARGE_AND_SMALL = "columns and cells in large and small units"
# A number that f32 holds, and hardly anything that is computed of it.
LARGEST = 3e38
ENTITIES = ("a", "b")

# A row of the numbers u, v, w, of which the third has an offset that f32 barely holds beside its spread, and the others have gaps.
MEANS, SPREADS, GAPS = np.array([10.0, 0.0, 1e5]), np.array([2.0, 1.0, 0.5]), np.array([0.0, 0.15, 0.0])

FEATURES = {
    "number": '"u"',
    "category": '{ column = "town", kind = "category" }',
    "one-hot": '{ column = "code", kind = "category", encoding = "one_hot" }, { column = "signs", kind = "labels", separator = ";" }',
    "numbers": '"u", "v", "w"',
    "kinds": """"u", "v", "w", { column = "town", kind = "category" }, { column = "code", kind = "category" },
  { column = "soil", kind = "category", encoding = "one_hot" }, { column = "ward", kind = "index", offset = 10, rows = 7 },
  { column = "zone", kind = "index", offset = -2, rows = 5, outside = "clamp" }, { column = "day", kind = "time" },
  { column = "signs", kind = "labels", separator = ";", empty = "missing" }""",
}


@dataclasses.dataclass(frozen=True)
class Table:
    """How data are described, and a function that writes those of training, or new ones, into a folder."""

    data: str
    write: Callable[[np.random.Generator, Path, bool], list[str]]


def numbers(rng, count):
    values = MEANS + SPREADS * rng.standard_normal((count, 3))
    values[rng.uniform(size=values.shape) < GAPS] = np.nan
    return values


def spoiled(row):
    """Copies of a row of numbers: nothing known, one missing, far away, infinite, all but lost beside zero."""
    row = np.where(np.isnan(row), MEANS, row)
    edges = [np.full(3, np.nan)]
    for place in range(3):
        others = (np.nan, MEANS[place] + FAR * SPREADS[place], MEANS[place] - FAR * SPREADS[place], np.inf, -np.inf, 1e-40, LARGEST)
        edges += [np.where(np.arange(3) == place, value, row) for value in others]
    return np.array(edges)


def effect(values):
    u, v, w = ((values - MEANS) / SPREADS).T
    v = np.nan_to_num(v)
    return u * v + 0.5 * w, u - v


def frame(rng, count):
    """A table with columns of every kind; the code is one of forty categories."""
    values = numbers(rng, count)
    table = pd.DataFrame(values, columns=["u", "v", "w"])
    table["town"] = rng.choice(["north", "south", "east"], count)
    table["code"] = [f"c{code}" for code in rng.integers(0, 40, count)]
    table["soil"] = rng.choice(["clay", "sand"], count)
    table["ward"] = pd.array(rng.integers(10, 16, count), "Int64")
    table["zone"] = pd.array(rng.integers(-2, 3, count), "Int64")
    table["day"] = pd.array(1_700_000_000 + 3600 * rng.integers(0, 9_000, count), "Int64")
    table["signs"] = [";".join(sign for sign in ("dew", "fog", "ice") if rng.uniform() < 0.5) for _ in range(count)]
    one, other = effect(values)
    more = table.town.map({"north": -2.0, "south": 3.0, "east": 0.0}) - table.signs.str.contains("fog") + 0.3 * table.ward.astype(float)
    table["warm"], table["cold"] = (one + more).round(4), (other - 2.0 * (table.soil == "clay")).round(4)
    table["colour"] = np.where(table.signs.str.contains("ice"), "blue", np.where(one > 0, "red", "green"))
    return table


def edges_of(table):
    """The first row with something wrong in one column, or in all."""
    first = table.iloc[0]
    rows = [{**first, "u": u, "v": v, "w": w} for u, v, w in spoiled(first[["u", "v", "w"]].to_numpy(float)) if not np.isinf([u, v, w]).any()]
    strange = {"town": "nowhere", "code": "c99", "soil": "mud", "ward": 17, "zone": 9, "signs": "hail;fog", "day": 4_000_000_000}
    columns = ["u", "v", "w", *strange]
    rows += [{**first, column: value} for column, value in strange.items()]
    rows += [{**first, column: None} for column in strange]
    rows += [{**first, **strange}, {**first, "ward": 16, "zone": -9}, {**first, **dict.fromkeys(columns)}]
    return pd.DataFrame(rows, columns=table.columns).astype(table.dtypes.to_dict())


def tabular(features, targets, more=""):
    def write(rng, folder, new):
        table = frame(rng, NEW_ROWS if new else ROWS)
        if new:
            table = pd.concat([table.drop(columns=["warm", "cold", "colour"]), edges_of(table)], ignore_index=True)[table.columns[:-3]]
        table.to_csv(folder / "rows.csv", index_label="id")
        return ["rows.csv"]

    lines = f'files = ["rows.csv"]\n{more}\n[data.rows]\nfeatures = [{FEATURES[features]}]\nrow_id = "id"\n{targets}'
    return Table(lines, write)


def arrays(shape, mend=lambda x, y: None, folder=".", units=(1, 1, 1)):
    """A grid of cells; `mend` makes something of the rows of training, all inputs are in these units."""

    def write(rng, place, new):
        values = numbers(rng, NEW_ROWS if new else ROWS)
        place = place / folder
        place.mkdir(exist_ok=True)
        if new:
            with np.errstate(over="ignore"):
                np.save(place / "x.npy", (units * np.concatenate([values, spoiled(values[0])])).astype(np.float32))
            return ["x.npy"]
        cells = np.arange(np.prod(shape)) % 7 - 3
        one, other = effect(values)
        y = 50 + 10 * (one[:, None] + 0.3 * cells * other[:, None] + 0.1 * rng.standard_normal((len(values), len(cells))))
        mend(values, y)
        np.save(place / "x.npy", (units * values).astype(np.float32))
        np.save(place / "y.npy", y.astype(np.float32).reshape(-1, *shape))
        return ["x.npy", "y.npy"]

    return Table(f'files = ["{folder}/x.npy", "{folder}/y.npy"]\nduplicates = "keep"\n[data.arrays]\nx = "x"\ny = "y"', write)


def windows(sources):
    """Two entities by the hour: two windows of history and a calendar go in, a window of four hours comes out."""

    def one(rng, path, steps, gaps):
        table = pd.DataFrame([(who, step) for step in range(steps) for who in ENTITIES], columns=["who", "step"])
        table["when"] = 1_700_006_400 + 3600 * table.step
        table["v"] = np.sin(table.step * table.who.map({"a": 0.6, "b": 0.4})) + 0.1 * rng.standard_normal(len(table))
        table["wind"] = rng.uniform(0, 360, len(table))
        if gaps:
            table.loc[30:50, "v"] = np.nan
            table.loc[60, "v"], table.loc[62, "wind"] = FAR, np.nan
        table.drop(columns="step").to_csv(path, index=False)

    def write(rng, folder, new):
        if new:
            one(rng, folder / "one.csv", 120, gaps=True)
            return ["one.csv"]
        for name, steps in zip(("one", "two"), (400, 600)):
            one(rng, folder / f"{name}.csv", steps, gaps=False)
        return ["one.csv", "two.csv"]

    files = 'files = ["one.csv"]'
    if sources:
        files = "\n".join(f'[[data.sources]]\nname = "{name}"\nfiles = ["{name}.csv"]\nweight = {weight}' for name, weight in (("one", 2), ("two", 1)))
    layout = """[data.windows]
entity = "who"
time = "when"
step_s = 3600
steps = 4
history = 2
inputs = ["v"]
circular = ["wind"]
target = "v"
calendar = ["hour", "weekday", "trend"]
[data.split]
kind = "chronological"
val = 0.2"""
    return Table(f"{files}\n{layout}", write)


def unseen(x, y):
    """No training row has the second column and cell, and in all the third ones are one number."""
    x[:, 1], x[:, 2] = np.nan, 3.0
    y[:, 1], y[:, 2] = np.nan, 7.5


def moved(x, y):
    """The same in other units."""
    x *= 1.5
    x += 4
    y *= 3
    y -= 70


def far_apart(x, y):
    """Half of the cells in millions, half in millionths."""
    y[:, ::2] *= 1e6
    y[:, 1::2] *= 1e-6


# Whose numbers are believed however far away they are.
NUMBERS = tabular("numbers", 'targets = ["warm"]', "ranges = { u = [-1e39, 1e39], v = [-1e39, 1e39], w = [-1e39, 1e39] }")
KINDS = tabular("kinds", 'targets = ["warm", "cold"]')
CLASSES = tabular("kinds", 'targets = ["colour"]\ntarget_kind = "category"')
GRID = arrays((2, 3))

MODEL = {
    "d_model": 16, "heads": 2, "preset": "spatiotemporal", "spatial_depth": 1, "temporal_depth": 1, "spatial_latents": 3,
    "temporal_latents": 4, "mlp_ratio": 2.0, "fuser_rounds": 1, "fuser_latents": 3, "collector_depth": 1, "patch": [1], "dropout": 0.1,
}  # fmt: skip
# Steps that are so long that no weight stays as it began.
TRAIN = {"epochs": 4, "batch": 32, "lr": 0.01, "warmup_ratio": 0.1, "threads": 1}
LEVELS = {"levels": [0.05, 0.25, 0.5, 0.9]}


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A model; `parent` are data that it is trained on before, as another run, and one that is `bare` says nothing of its sizes."""

    family: str
    name: str
    table: Table
    model: dict = dataclasses.field(default_factory=dict)
    train: dict = dataclasses.field(default_factory=dict)
    tasks: tuple[dict, ...] = ()
    quantiles: bool = False
    stream: bool = False
    parent: Table | None = None
    bare: bool = False
    worker: str = "enn-worker"

    def text(self, table):
        """The configuration's file, for this table or the parent's."""
        value = lambda v: str(v).lower() if isinstance(v, bool) else repr(v).replace("'", '"')
        lines = lambda head, entries: "\n".join([head, *(f"{key} = {value(entry)}" for key, entry in entries.items())])
        parts = ['name = "swept"\nseed = 3\n[data]', table.data, lines("[model]", {**({} if self.bare else MODEL), **self.model})]
        parts += [lines("[[model.tasks]]", task) for task in self.tasks]
        parts += [lines("[train]", {**TRAIN, **self.train}), '[cluster]\ndevice = "cpu"\nnproc_per_node = 1\n']
        return "\n".join(parts)


def configurations():
    """All of them."""
    found = []

    def add(family, name, table, model=None, train=None, **more):
        found.append(Configuration(family, name, table, model or {}, train or {}, **more))

    for preset in ("spatial", "temporal"):
        for norm in ("layernorm", "rmsnorm"):
            add("templates", f"{preset}, {norm}", GRID, {"preset": preset, "norm": norm})
    for mixer in ("gated_ema", "retnet"):
        add("templates", f"both, {mixer}, rmsnorm", KINDS, {"mixer": mixer, "norm": "rmsnorm"})
        # Longer than a chunk of the scan.
        add("templates", f"130 tokens, {mixer}", NUMBERS, {"mixer": mixer, "spatial_latents": 130, "temporal_latents": 70})
    add("templates", "three blocks, four heads", NUMBERS, {"spatial_depth": 3, "temporal_depth": 2, "heads": 4, "mlp_ratio": 1.0})
    for segments, dilations, tokens in (([4], [1], 7), ([2, 4, 8], [1, 2, 4], 33), ([4, 8], [1, 4], 3)):
        model = {"mixer": "dilated", "segments": segments, "dilations": dilations, "spatial_latents": tokens, "temporal_latents": tokens}
        add("dilated attention", f"{tokens} tokens, dilations {dilations}", GRID, model)
    for gate in ("off", "scalar", "tile"):
        for linear in (False, True):
            add("gates", f"{gate}, {'a' if linear else 'no'} linear branch", GRID, {"gate": gate, "linear_branch": linear})
    for loss in ("mse", "huber"):
        add("heads", loss, NUMBERS, {}, {"loss": loss, "base_loss_weight": 0.0})
    add("heads", "quantiles", KINDS, {}, {"loss": "quantile", **LEVELS}, quantiles=True)
    add("heads", "quantiles of a grid, tiles", arrays((2, 4, 6)), {"patch": [1, 2, 3], "gate": "tile"}, {"loss": "quantile", **LEVELS}, quantiles=True)
    add("heads", "normal", GRID, {}, {"loss": "gaussian", **LEVELS}, quantiles=True)
    add("heads", "Student's t", KINDS, {"gate": "tile"}, {"loss": "student_t", "degrees_of_freedom": 3.5}, quantiles=True)
    add("heads", "one level", GRID, {}, {"loss": "gaussian", "levels": [0.5]}, quantiles=True)
    add("heads", "CRPS", NUMBERS, {}, {"loss": "crps", **LEVELS}, quantiles=True)
    add("heads", "the point of a normal", GRID, {"gate": "off"}, {"loss": "gaussian"})
    add("heads", "classes", CLASSES, {}, {"loss": "cross_entropy"})
    add("heads", "classes, no linear branch", CLASSES, {"linear_branch": False, "gate": "off"}, {"loss": "cross_entropy"})
    add("heads", "rank 2 of 24 cells", arrays((4, 6)), {"head_rank": 2, "patch": [2, 2]})
    for shape, patch, reduction in (((5,), [2], "linear"), ((4, 6), [3, 4], "mean"), ((2, 3, 4), [1, 2, 3], "linear"), ((4, 4, 6), [2, 2, 3], "mean")):
        model = {"patch": patch, "fuser_reduction": reduction, "collector_depth": len(shape)}
        add("grids", f"{shape}, patches {patch}, {reduction}", arrays(shape), model)
    add("grids", "no collector, no self-attention", arrays((3, 4)), {"collector_depth": 0, "fuser_self_layers": 0, "fuser_rounds": 2})
    add("inputs", "columns of every kind", KINDS)
    add("inputs", "windows and a calendar", windows(False), {"patch": [1, 2]})
    add("inputs", "two sources", windows(True), {"patch": [1, 4], "gate": "tile"})
    for features in ("number", "category", "one-hot"):
        add("inputs", f"{features} alone", tabular(features, 'targets = ["warm"]'))
    add("inputs", "sizes by the rows", KINDS, bare=True)
    add("inputs", "columns and cells without a value, or a spread", arrays((2, 3), unseen))
    forest = (
        {"name": "week", "mode": "temporal", "tokens": 5, "mixer": "retnet", "parent": "calendar"},
        {"name": "year", "mode": "spatial", "tokens": 2, "depth": 2, "parent": "calendar", "weight": 3.0},
        {"name": "calendar", "reduction": "linear", "weight": 0.5},
        {"name": "place", "mode": "spatial", "tokens": 3, "mixer": "gated_ema"},
    )
    add("forests", "sub-fuser beside a template", KINDS, {"preset": "none"}, tasks=forest)
    deeper = ({"name": "all", "reduction": "mean"}, *({**task, "parent": task.get("parent", "all")} for task in forest))
    add("forests", "a fuser in a fuser beside the preset", GRID, {"fuser_reduction": "linear"}, tasks=deeper)
    own = {"name": "own", "mode": "temporal", "tokens": 3, "model": "token_map"}
    named = tuple({"name": name, "mode": "spatial", "tokens": 2} for name in ("in", "in_", "x", "constant_1"))
    add("forests", "tasks called as what is taken", NUMBERS, {"preset": "none"}, tasks=named)
    add("forests", "a module of the user's", NUMBERS, tasks=(own,), worker="submodel")
    add("forests", "one that overflows", NUMBERS, {"preset": "none", "linear_branch": False, "gate": "off"}, tasks=({**own, "model": "shrunk"},), worker="submodel")
    for mixer in ("gated_ema", "retnet"):
        add("streams", mixer, NUMBERS, {"mixer": mixer, "temporal_depth": 2}, stream=True)
    add("streams", "a forest and quantiles", NUMBERS, {"preset": "none"}, {"loss": "quantile"}, tasks=forest, quantiles=True, stream=True)
    # Names that are one where only letters, digits and _ are, and one that is not ASCII.
    alike = tuple({"name": name, "mode": "temporal", "tokens": tokens} for name, tokens in (("a-b", 2), ("a_b", 2), ("früh", 3)))
    add("streams", "tasks that are called alike", NUMBERS, {"preset": "none"}, tasks=alike, stream=True)
    add("streams", "70 tokens, temporal alone", GRID, {"preset": "temporal", "temporal_latents": 70}, stream=True)
    add("after training", "calibrated", KINDS, {}, {"calibration": "affine"})
    stretched = {"loss": "gaussian", "calibration": "affine", "calibrate_intervals": True, **LEVELS}
    add("after training", "calibrated intervals", GRID, {}, stretched, quantiles=True)
    add("after training", "an output range", KINDS, {"output_range": [0.0, 4.0]})
    add("after training", "an output range of quantiles", GRID, {"output_range": [40.0, 60.0]}, {"loss": "quantile"}, quantiles=True)
    add("after training", "the mean of the last steps", NUMBERS, {}, {"averaging": "swa_tail"})
    add("after training", "another run's weights, other targets", GRID, parent=arrays((2, 3), moved, "before"))
    units = arrays((4, 6), far_apart, units=(1e6, 1e-6, 1))
    add("after training", LARGE_AND_SMALL, units, {"patch": [2, 3], "gate": "tile"}, stretched, quantiles=True)
    return found
