"""Writes the configuration of a training from a table and settings."""

import difflib
import json

from . import tables
from .errors import EnnError

SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def toml(sections: dict) -> str:
    """Returns a document of TOML: plain keys first, then a table for each dictionary."""
    keys = [f"{key_text(key)} = {value_text(value)}" for key, value in sections.items() if not isinstance(value, dict)]
    parts = ["\n".join(keys)]
    for key, section in sections.items():
        if isinstance(section, dict) and section:
            parts.append("\n".join([f"[{key_text(key)}]", *(f"{key_text(name)} = {value_text(value)}" for name, value in section.items())]))
    return "\n\n".join(part for part in parts if part) + "\n"


def key_text(key: str) -> str:
    is_bare = key and all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in key)
    return key if is_bare else value_text(key)


def value_text(value) -> str:
    """Returns a value as TOML. Raises `EnnError` for one that TOML does not have."""
    if hasattr(value, "item") and not isinstance(value, (str, bytes)) and getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if hasattr(value, "__fspath__"):
        return value_text(str(value))
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key_text(str(key))} = {value_text(part)}" for key, part in value.items()) + " }"
    if isinstance(value, (list, tuple)) or hasattr(value, "tolist"):
        return "[" + ", ".join(value_text(part) for part in value) + "]"
    raise EnnError(f"a setting is {value!r}, a {type(value).__name__}", "settings are numbers, texts, true or false, lists and dictionaries")


def check_columns(known: "list[str]", names: "list[str]", setting: str) -> None:
    """Raises `EnnError` if a column is not in the table."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            guess = f' (did you mean "{near[0]}"?)' if near else ""
            has = ", ".join(f'"{column}"' for column in known[:20]) + (", …" if len(known) > 20 else "")
            raise EnnError(f'{setting}: the table has no column "{name}"{guess}; it has {has}')


def listed(value) -> list:
    """Returns a name as a list of one, nothing as an empty list, and names that are no texts as texts, as in the table."""
    if value is None:
        return []
    several = value if not isinstance(value, (str, dict)) and hasattr(value, "__iter__") else [value]
    return [part if isinstance(part, (str, dict)) else str(part) for part in several]


class Columns:
    """The role of each column of a table in a training."""

    def __init__(self, schema, names: "list[str]", target, settings: dict):
        self.schema = schema
        self.names = names
        self.targets = listed(target)
        self.time = settings.get("time")
        self.series = settings.get("series")
        self.horizon = settings.get("horizon")
        self.step = settings.get("step")
        self.history = settings.get("history")
        self.weight = settings.get("weight")
        self.group = settings.get("group")
        self.exclude = listed(settings.get("exclude"))
        self.categories = listed(settings.get("categories"))
        self.features = settings.get("features")
        self.task = settings.get("task")
        self.is_forecast = self.horizon is not None
        self.check()

    def check(self) -> None:
        if not self.targets:
            raise EnnError("no target is named", 'name the column to predict: enn.train(table, target="…")')
        check_columns(self.names, self.targets, "target")
        for setting in ("time", "series", "weight", "group"):
            name = getattr(self, setting)
            check_columns(self.names, [] if name is None else [name], setting)
        check_columns(self.names, self.exclude, "exclude")
        check_columns(self.names, self.categories, "categories")
        both = [name for name in (*self.targets, self.time, self.series, self.weight, self.group) if name in self.exclude]
        if both:
            raise EnnError(f'exclude: column "{both[0]}" has another role', "leave it out of one of the two")
        if self.is_forecast:
            if self.time is None:
                raise EnnError("a forecast (horizon) needs the column of times", 'name it: time="…"')
            if len(self.targets) > 1:
                raise EnnError(f"a forecast has one target, and {len(self.targets)} are named")
            away = [name for name in ("weight", "group", "categories", "task") if getattr(self, name)]
            if away:
                raise EnnError(f"{away[0]} does not apply to a forecast", "leave it out, or leave out horizon")
        else:
            given = [name for name in ("series", "step", "history") if getattr(self, name) is not None]
            if given:
                raise EnnError(f"{given[0]} belongs to a forecast", "give horizon, the number of steps to forecast, too")
            if self.time is not None and self.group is not None:
                raise EnnError("time and group are given, and each says how the table is split", "leave one of them out; a column of times is an input anyway")
        if self.task not in (None, "regression", "classification"):
            raise EnnError(f'task is {self.task!r}, expected "regression" or "classification"')

    def inputs(self) -> list:
        """Returns the features of the layout `rows`, with their kinds."""
        if self.features is not None:
            features = listed(self.features)
            check_columns(self.names, [feature.get("column") if isinstance(feature, dict) else feature for feature in features], "features")
            return [feature if isinstance(feature, dict) else self.feature(feature) for feature in features]
        away = {*self.targets, *self.exclude, self.weight, self.group}
        features = [self.feature(name) for name in self.schema.names if name not in away]
        if not features:
            raise EnnError("the table has no column but the target", "a model needs at least one column to predict from")
        return features

    def feature(self, name: str):
        kind = "category" if name in self.categories else "time" if name == self.time else self.kind(name)
        return name if kind == "number" else {"column": name, "kind": kind}

    def kind(self, name: str) -> str:
        """Returns the kind of a column. Raises `EnnError` for a type that `enn` does not read.

        The rule for types is that of `enn new` (launcher/data/src/survey/guess.rs), which also guesses from the values of texts.
        """
        kind = self.schema.field(name).type
        if tables.kind_of(kind) is None:
            raise EnnError(f'column "{name}" is of type {kind}', "convert it to numbers, texts or times, or leave it out with exclude")
        return tables.kind_of(kind)

    def is_classification(self) -> bool:
        kinds = {self.kind(name) for name in self.targets}
        if self.task is not None:
            return self.task == "classification"
        if kinds & {"time", "labels"}:
            raise EnnError("the target is a time or a list", "predict a number or a category")
        return kinds == {"category"}

    def used(self) -> "list[str]":
        """Returns the names of the columns that the configuration uses, in the order of the table."""
        features = self.window_inputs() if self.is_forecast else self.inputs()
        names = {feature if isinstance(feature, str) else feature.get("column") for feature in features}
        names |= {*self.targets, self.time, self.series, self.weight, self.group}
        return [name for name in self.schema.names if name in names]

    def window_inputs(self) -> list:
        """Returns the columns whose history is an input of a forecast: the target, and all other numbers."""
        if self.features is not None:
            features = listed(self.features)
            check_columns(self.names, features, "features")
            return features
        away = {*self.exclude, self.time, self.series, self.weight, self.group, *self.targets}
        numbers = [name for name in self.schema.names if name not in away and tables.kind_of(self.schema.field(name).type) == "number"]
        return [*self.targets, *numbers]

    def data(self, files: "list[str]", table) -> dict:
        """Returns the section `data`. The table of a forecast tells the distance of its times."""
        if self.is_forecast:
            return {"files": files, "windows": self.windows(table)}
        rows = {"features": self.inputs(), "targets": self.targets}
        if self.is_classification():
            rows["target_kind"] = "category"
        data = {"files": files, "rows": rows}
        if self.weight is not None:
            data["weight"] = self.weight
        split = {}
        if self.group is not None:
            split = {"kind": "group", "column": self.group}
        elif self.time is not None:
            split = {"kind": "chronological", "column": self.time}
        return {**data, "split": split} if split else data

    def windows(self, table) -> dict:
        windows = {"entity": self.series, "time": self.time, "target": self.targets[0], "steps": self.horizon, "inputs": self.window_inputs()}
        if self.history is not None:
            windows["history"] = self.history
        step = usual_step(table.column(self.time)) if self.step is None else seconds_of(self.step)
        if step is not None:
            windows["step_s"] = step
        if tables.arrow().types.is_integer(self.schema.field(self.time).type):
            windows["calendar"] = []
        return windows


def seconds_of(step) -> int:
    """Returns a length of time in whole seconds: a number of seconds, a timedelta, or a text that pandas reads, such as "1h"."""
    if isinstance(step, str):
        import pandas

        try:
            step = pandas.Timedelta(pandas.tseries.frequencies.to_offset(step))
        except (ValueError, TypeError) as error:
            raise EnnError(f'step is "{step}", which has no fixed length: {error}', "months and years need a running number as time, and step=1") from None
    if hasattr(step, "total_seconds"):
        step = step.total_seconds()
    if isinstance(step, bool) or step != int(step) or step < 1:
        raise EnnError(f"step is {step!r}", "give a whole number of seconds, a timedelta, or a text such as \"1h\"")
    return int(step)


def usual_step(times) -> "int | None":
    """Returns the most frequent distance of neighbouring times in seconds; `None` where there is none in whole seconds."""
    compute = tables.arrow().compute
    times = in_seconds(times)
    if times is None:
        return None
    known = compute.unique(times.drop_null())
    known = known.take(compute.sort_indices(known))
    if len(known) < 2:
        return None
    counts = compute.value_counts(compute.subtract(known.slice(1), known.slice(0, len(known) - 1)))
    return max(counts.to_pylist(), key=lambda entry: (entry["counts"], -entry["values"]))["values"]


def in_seconds(times):
    """Returns times in whole seconds since 1970, integers as they are, and `None` for columns that hold no times."""
    pyarrow = tables.arrow()
    kind = times.type
    if pyarrow.types.is_date(kind):
        kind = pyarrow.timestamp("s")
        times = times.cast(kind)
    if pyarrow.types.is_timestamp(kind):
        return pyarrow.compute.divide(times.cast("int64"), SECOND[kind.unit])
    if pyarrow.types.is_integer(kind):
        return times.cast("int64")
    try:
        return times.cast(pyarrow.string()).cast(pyarrow.timestamp("s", tz="UTC")).cast("int64")
    except pyarrow.ArrowException:
        return None


def last_time(table, time: str, target: str) -> "int | None":
    """Returns the last time at which a target is known, in seconds since 1970."""
    compute = tables.arrow().compute
    times = in_seconds(table.column(time))
    return None if times is None else compute.max(times.filter(compute.is_valid(table.column(target)))).as_py()
