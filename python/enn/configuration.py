"""Says to `enn train` what a table and settings are to be: the roles of columns as flags, settings as changes of keys.

Which columns are of use, and of which kind they are, `enn` guesses itself, so that a table has one configuration however it is trained on.
"""

import difflib
import json

from . import tables
from .errors import EnnError

SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# Sections within sections, whose keys are changed one by one.
PARTS = {"data": ("arrays", "rows", "split", "windows")}


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


def changes(sections: dict) -> "list[str]":
    """Returns the flags that set keys; sections hold dictionaries, and plain keys that are `None` are not set."""
    keys = {}
    for name, section in sections.items():
        if not isinstance(section, dict):
            keys |= {} if section is None else {name: section}
            continue
        for key, value in section.items():
            is_part = key in PARTS.get(name, ()) and isinstance(value, dict)
            keys |= {f"{name}.{key}.{part}": inner for part, inner in value.items()} if is_part else {f"{name}.{key}": value}
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value_text(value)}")]


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


def first(value):
    """Returns the first of the values of a setting; `None` where there is none."""
    return next(iter(listed(value)), None)


class Columns:
    """The roles that columns of a table are given in a training."""

    def __init__(self, target, settings: dict):
        self.targets = listed(target)
        self.time = first(settings.get("time"))
        self.series = first(settings.get("series"))
        self.weight = first(settings.get("weight"))
        self.group = first(settings.get("group"))
        self.horizon = settings.get("horizon")
        self.step = settings.get("step")
        self.history = settings.get("history")
        self.exclude = listed(settings.get("exclude"))
        self.categories = listed(settings.get("categories"))
        self.features = listed(settings.get("features"))
        self.task = settings.get("task")
        self.is_forecast = self.horizon is not None
        self.check()

    def check(self) -> None:
        """Raises `EnnError` for settings that do not belong together."""
        if not self.targets:
            raise EnnError("no target is named", 'name the column to predict: enn.train(table, target="…")')
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

    def check_names(self, known: "list[str]") -> None:
        """Raises `EnnError` if a column is not in a table with these columns."""
        single = {setting: listed(getattr(self, setting)) for setting in ("time", "series", "weight", "group")}
        for setting, names in {"target": self.targets, **single, "exclude": self.exclude, "categories": self.categories, "features": self.named()}.items():
            check_columns(known, names, setting)

    def named(self) -> "list[str]":
        """Returns the names of the features that are named."""
        return [feature.get("column") if isinstance(feature, dict) else feature for feature in self.features]

    def used(self, known: "list[str]") -> "list[str]":
        """Returns the columns of a table that may be of use."""
        names = {*self.named(), *self.targets, self.time, self.series, self.weight, self.group}
        return [name for name in known if (name in names if self.features else name not in self.exclude)]

    def flags(self) -> "list[str]":
        """Returns the flags by which `enn train` is told the roles, and the changes that they need."""
        features = [value_text(feature) if isinstance(feature, dict) else feature for feature in self.features]
        lists = {"target": self.targets, "feature": features, "exclude": self.exclude, "category": self.categories}
        single = {name: getattr(self, name) for name in ("time", "series", "horizon", "task", "weight", "group")}
        flags = [f"--{flag}={name}" for flag, names in lists.items() for name in names]
        flags += [f"--{flag}={value_text(value) if flag == 'horizon' else value}" for flag, value in single.items() if value is not None]
        step = None if self.step is None else seconds_of(self.step)
        windows = {key: value for key, value in (("step_s", step), ("history", self.history)) if value is not None}
        return flags + changes({"data": {"windows": windows}})


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
