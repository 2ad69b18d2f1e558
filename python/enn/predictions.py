"""Reads what `enn predict` writes, and makes tables of it."""

import json
from pathlib import Path

from . import tables, values
from .errors import EnnError


class Description:
    """What is known of a run's table: layout, targets, labels, and the types that its columns had in Python."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self.data = json.loads((path / "run.json").read_text())["data"]
        except (OSError, ValueError, KeyError) as error:
            raise EnnError(f"{path} is no run: its run.json cannot be read ({type(error).__name__}: {error})") from None
        layout = self.data["layout"]
        self.layout = layout
        self.is_forecast = layout["kind"] == "windows"
        self.is_classification = bool(layout.get("classes"))
        self.targets = [layout["target"]] if self.is_forecast else list(layout.get("targets", []))
        self.time = layout.get("time") if self.is_forecast else None
        self.series = layout.get("entity") if self.is_forecast else None
        self.kept = values.kept(path)
        self.named = texts_in(self.data)

    def is_wanted(self, name: str) -> bool:
        """Returns whether the model reads a column; the target of a forecast is its history."""
        return name in self.named and (self.is_forecast or name not in self.targets)

    def wanted(self, table):
        """Returns the columns of a table that the model reads."""
        names = [name for name in table.column_names if self.is_wanted(name)]
        if self.is_forecast and self.series == ONE_SERIES and self.series not in names:
            return with_one_series(table.select(names), self.targets[0])
        return table.select(names) if names else table


ONE_SERIES = "series"


def with_one_series(table, name: str):
    """Returns a table with a column for its only series, which bears the name of the target."""
    pyarrow = tables.arrow()
    if ONE_SERIES in table.column_names:
        raise EnnError(f'the table has a column "{ONE_SERIES}", and series is not given', f'give series="{ONE_SERIES}", or rename the column')
    codes = pyarrow.DictionaryArray.from_arrays(pyarrow.repeat(pyarrow.scalar(0, "int8"), table.num_rows), [name])
    return table.append_column(ONE_SERIES, codes)


def texts_in(value) -> "set[str]":
    """Returns all texts in a value of JSON, those in lists and objects, too."""
    if isinstance(value, str):
        return {value}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return set().union(*(texts_in(part) for part in parts))


class Answers:
    """Predictions of a run as arrays of NumPy."""

    def __init__(self, description: Description, directory: str):
        import numpy

        self.numpy = numpy
        self.description = description
        self.manifest = json.loads(Path(directory, "manifest.json").read_text())
        self.columns = self.manifest["columns"]
        rows = self.manifest["rows"]
        arrays = {path.stem: numpy.load(path) for path in Path(directory).glob("*.npy")}
        self.points = arrays["pred"].reshape(rows, -1)
        levels = arrays.get("levels")
        self.levels = None if levels is None else levels.reshape(rows, len(self.manifest["levels"]), -1)
        self.label = arrays.get("label")
        self.row_id = arrays["row_id"]

    def quantiles(self) -> "list[tuple[str, int]]":
        """Returns the levels beside the median, as in the names of columns, with their place."""
        if self.levels is None:
            return []
        return [(f"{level:g}", place) for place, level in enumerate(self.manifest["levels"]) if level != 0.5]

    def rows(self, is_plain: bool):
        """Returns a table with a row for each row of the data; `is_plain`: only the targets, or the class."""
        pyarrow = tables.arrow()
        if self.description.is_classification:
            name = self.description.targets[0]
            columns = {name: self.classes()}
            if not is_plain:
                columns |= {f"{name}={column}": pyarrow.array(self.points[:, place]) for place, column in enumerate(self.columns)}
            return self.typed(columns)
        columns = {name: self.points[:, place] for place, name in enumerate(self.columns)}
        if not is_plain:
            for level, at in self.quantiles():
                columns |= {f"{name}@{level}": self.levels[:, at, place] for place, name in enumerate(self.columns)}
        return self.typed({name: self.number(numbers, name) for name, numbers in columns.items()})

    def number(self, array, name: str):
        """Returns predictions as a column of the type of its target; a value that is not a number is a missing one."""
        return tables.arrow().array(array, from_pandas=True).cast(self.number_type(name))

    def number_type(self, name: str):
        pyarrow = tables.arrow()
        kept = self.description.kept
        target = name if kept is None or name in kept.column_names else name.rpartition("@")[0]
        if kept is not None and target in kept.column_names and pyarrow.types.is_floating(kept.schema.field(target).type):
            return kept.schema.field(target).type
        return pyarrow.float64()

    def typed(self, columns: dict):
        """Returns a table in which pandas finds again the types of the columns that have kept theirs."""
        pyarrow = tables.arrow()
        kept = self.description.kept
        table = pyarrow.table(columns)
        if kept is None:
            return table
        schema = kept.schema
        fields = []
        for field in table.schema:
            if field.name in kept.column_names and field.type == schema.field(field.name).type:
                field = schema.field(field.name)
            else:
                schema = values.without_pandas(schema, field.name)
            fields.append(field)
        return pyarrow.Table.from_arrays(table.columns, schema=pyarrow.schema(fields, metadata=schema.metadata))

    def classes(self):
        """Returns the most probable class of each row, or a missing value where there is none."""
        pyarrow = tables.arrow()
        kept = self.description.kept
        none = self.numpy.isnan(self.points).any(axis=1)
        codes = self.label if self.label is not None else self.numpy.nan_to_num(self.points, nan=-1).argmax(axis=1)
        codes = pyarrow.array(codes.astype("int64").reshape(-1), mask=none)
        return self.named(self.columns, self.description.targets[0], kept).take(codes)

    def named(self, labels: "list[str]", name: str, kept):
        """Returns the values that labels of `enn` stand for, of the type that they had in the table; else their texts."""
        pyarrow = tables.arrow()
        if kept is not None and name in kept.column_names and kept.num_rows == len(labels):
            known = kept.column(name).combine_chunks()
            if known.null_count == 0:
                return known
        return pyarrow.array(labels, pyarrow.string())

    def forecast(self, after: "int | None"):
        """Returns a table with a row for each series and time, ordered by series, then time; `after`: only later times, in seconds since 1970."""
        numpy = self.numpy
        description = self.description
        series, steps = self.manifest["out_shape"]
        of_series, of_times = self.manifest["axes"]
        times = self.row_id.astype("int64")[:, None] + numpy.array(of_times["seconds"], "int64")
        chosen = numpy.ones(times.shape, bool) if after is None else times > after
        count = int(chosen.sum())

        def by_series(array):
            return array.reshape(-1, series, steps).transpose(1, 0, 2)[:, chosen].reshape(-1)

        labels = of_series["labels"]
        columns = {}
        if description.series != ONE_SERIES or len(labels) > 1:
            codes = tables.arrow().array(numpy.repeat(numpy.arange(series), count))
            columns[description.series] = self.named(labels, description.series, description.kept).take(codes)
        columns[description.time] = self.moments(numpy.tile(times[chosen], series))
        target = description.targets[0]
        columns[target] = self.number(by_series(self.points), target)
        for level, at in self.quantiles():
            columns[f"{target}@{level}"] = self.number(by_series(self.levels[:, at]), f"{target}@{level}")
        return self.typed(columns)

    def moments(self, seconds):
        """Returns times of the type that they had in the table."""
        pyarrow = tables.arrow()
        kept = self.description.kept
        kind = kept.schema.field(self.description.time).type if kept is not None and self.description.time in kept.column_names else None
        if kind is not None and pyarrow.types.is_integer(kind):
            return pyarrow.array(seconds).cast(kind)
        moments = pyarrow.array(seconds).cast(pyarrow.timestamp("s"))
        if kind is None or not (pyarrow.types.is_timestamp(kind) or pyarrow.types.is_date(kind)):
            return moments.cast(pyarrow.timestamp("us", tz="UTC"))
        return moments.cast(pyarrow.timestamp("s", tz=kind.tz)).cast(kind) if getattr(kind, "tz", None) else moments.cast(kind)
