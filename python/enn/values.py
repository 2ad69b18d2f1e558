"""The values by which a run trained from Python gives its answers: classes, series, times and targets, with the types that they had in the table.

They are kept in the file `python.arrow` of the run. A run that was trained otherwise has texts for classes and series.
"""

import contextlib
import datetime
import json
import os

from . import tables

FILE = "python.arrow"


def keep(path, table, names: "list[str]", labels: "list[str] | None") -> None:
    """Writes the file: a table of the columns `names`. Labels, if there are any, are texts of `enn`, and the first column has a value for each of them."""
    pyarrow = tables.arrow()
    table = table.select(names)
    count = len(labels) if labels is not None else 0
    columns = []
    for number, name in enumerate(names):
        if number == 0 and labels is not None:
            columns.append(matched(table.column(name), labels))
        else:
            columns.append(pyarrow.nulls(count, table.schema.field(name).type))
    kept = pyarrow.table(columns, schema=table.schema)
    tables.write(kept, os.path.join(path, FILE))


def kept(path):
    """Returns the table that `keep` wrote, or `None` where there is none."""
    pyarrow = tables.arrow()
    try:
        with open(os.path.join(path, FILE), "rb") as file:
            return pyarrow.ipc.open_file(file.read()).read_all()
    except FileNotFoundError:
        return None


def matched(column, labels: "list[str]"):
    """Returns for each label of `enn` the value of the column that it stands for."""
    pyarrow = tables.arrow()
    distinct = pyarrow.compute.unique(column).drop_null()
    plain = distinct.cast(distinct.type.value_type) if pyarrow.types.is_dictionary(distinct.type) else distinct
    places = {}
    for place, value in reversed(list(enumerate(plain.to_pylist()))):
        for name in spellings(value):
            places[name] = place
    found = [places.get(label, places.get(number_of(label))) for label in labels]
    return distinct.take(pyarrow.array(found, "int64"))


def number_of(text: str) -> "float | None":
    with contextlib.suppress(ValueError):
        return float(text)
    return None


def spellings(value) -> list:
    """Returns the names that `enn` may give to a value. A number is also found by its value, in whatever notation."""
    if isinstance(value, bool):
        return [str(value), str(value).lower()]
    if isinstance(value, datetime.datetime):
        texts = [value.isoformat(), value.isoformat(sep=" "), value.strftime("%Y-%m-%dT%H:%M:%SZ")]
        return [*texts, value.date().isoformat()] if value.time() == datetime.time() else texts
    if isinstance(value, str):
        number = number_of(value)
        return [value] if number is None else [value, number]
    number = number_of(str(value))
    return [str(value)] if number is None else [str(value), number]


def without_pandas(schema, name: str):
    """Returns a schema in which nothing is known of the type that a column has in pandas."""
    metadata = dict(schema.metadata or {})
    if b"pandas" in metadata:
        known = json.loads(metadata[b"pandas"])
        known["columns"] = [column for column in known["columns"] if column["name"] != name]
        metadata[b"pandas"] = json.dumps(known).encode()
    return schema.with_metadata(metadata or None)
