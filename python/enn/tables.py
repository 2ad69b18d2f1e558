"""Tables of pandas, polars, Arrow and NumPy, and how they become tables of Arrow and come back. Arrow's own memory is used where that is possible."""

import contextlib
import functools
import glob
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass

from .errors import EnnError

# Texts that mean a missing cell to `enn`, where the configuration names no others.
MISSING_WORDS = ("NA", "N/A", "NaN", "nan", "null", "NULL", "None")
NEEDS = "`pip install pyarrow numpy` installs what tables need"


def arrow():
    """Imports pyarrow. Raises `EnnError` where it is missing."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError as error:
        raise EnnError(f"tables go to enn as Arrow, and pyarrow cannot be imported: {error}", NEEDS) from None
    return pyarrow


def is_path(data) -> bool:
    """Returns whether data is a path or a list of paths."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return isinstance(data, (list, tuple)) and len(data) > 0 and all(isinstance(part, (str, os.PathLike)) for part in data)


def paths(data) -> "list[str]":
    """Returns absolute paths of a path or a list of paths."""
    return [os.path.abspath(os.fspath(part)) for part in ([data] if isinstance(data, (str, os.PathLike)) else data)]


def of_library(data, library: str, *types: str) -> bool:
    """Returns whether data is an object of a library, which is not imported for the question."""
    module = sys.modules.get(library)
    return module is not None and any(isinstance(data, getattr(module, name)) for name in types)


@dataclass
class Frame:
    """A table that was given, as Arrow, and what is needed to give an answer in the same form."""

    table: object
    kind: str
    index: object = None
    # All columns that were given, those that are of no use as well.
    names: "list[str] | None" = None

    def give(self, table, has_rows: bool = True):
        """Returns a table of Arrow in the form of the given one. With `has_rows` its rows are those of the given one, and have their index."""
        if self.kind == "pandas":
            frame = table.to_pandas(split_blocks=True)
            if has_rows and self.index is not None:
                frame.index = self.index
            return frame
        if self.kind == "polars":
            import polars

            return polars.from_arrow(table)
        if self.kind == "numpy":
            import numpy

            columns = [column.to_numpy() for column in table.columns]
            return columns[0] if len(columns) == 1 else numpy.column_stack(columns)
        return table


def read(data, is_wanted=None) -> Frame:
    """Returns a table as Arrow. `is_wanted` says of the name of a column whether it may be of use.

    Raises `EnnError` for what is no table, and for columns that Arrow cannot hold.
    """
    pyarrow = arrow()
    if of_library(data, "pandas", "DataFrame", "Series"):
        frame = data if hasattr(data, "columns") else data.to_frame("value" if data.name is None else data.name)
        return Frame(plain(of_pandas(frame, is_wanted)), "pandas", frame.index, [str(name) for name in frame.columns])
    if of_library(data, "polars", "LazyFrame"):
        data = data.collect()
    if of_library(data, "polars", "DataFrame"):
        return Frame(plain(data.to_arrow()), "polars")
    if of_library(data, "numpy", "ndarray"):
        return Frame(plain(of_numpy(data)), "numpy")
    if isinstance(data, pyarrow.RecordBatch):
        return Frame(plain(pyarrow.Table.from_batches([data])), "arrow")
    if isinstance(data, (pyarrow.Table, dict)) or hasattr(data, "__arrow_c_stream__"):
        return Frame(plain(pyarrow.table(data)), "arrow")
    raise EnnError(
        f"the table is a {type(data).__name__}",
        "give a DataFrame of pandas or polars, a table of Arrow, an array of NumPy, a dictionary of columns, or the path of a file",
    )


def of_pandas(frame, is_wanted):
    pyarrow = arrow()
    names = [str(name) for name in frame.columns]
    refuse_repeated(names)
    if names != list(frame.columns):
        frame = frame.set_axis(names, axis=1)
    if is_wanted is not None and not all(map(is_wanted, names)):
        names = [name for name in names if is_wanted(name)]
        frame = frame[names]
    try:
        return pyarrow.Table.from_pandas(frame, preserve_index=False)
    except (pyarrow.ArrowException, TypeError, ValueError):
        pass
    fixed = {name: of_pandas_column(frame[name], name) for name in names}
    return pyarrow.Table.from_pandas(frame.assign(**fixed), preserve_index=False)


def of_pandas_column(column, name: str):
    """Returns a column that Arrow can hold."""
    pyarrow = arrow()
    try:
        pyarrow.array(column, from_pandas=True)
        return column
    except (pyarrow.ArrowException, TypeError, ValueError):
        kinds = sorted({type(value).__name__ for value in column.dropna()})
    raise EnnError(
        f'column "{name}" holds values of different kinds: {", ".join(kinds)}', f'convert it, e.g. with frame["{name}"].astype(str), or leave it out'
    )


def of_numpy(array):
    pyarrow = arrow()
    if array.dtype.names:
        return pyarrow.table({name: pyarrow.array(array[name]) for name in array.dtype.names})
    if array.ndim not in (1, 2):
        raise EnnError(f"the array has {array.ndim} dimensions", "give an array of shape (rows, columns)")
    columns = array[:, None] if array.ndim == 1 else array
    try:
        return pyarrow.table({f"x{number}": pyarrow.array(columns[:, number], from_pandas=True) for number in range(columns.shape[1])})
    except (pyarrow.ArrowException, TypeError) as error:
        raise EnnError(f"the array of {array.dtype} cannot be a table: {error}") from None


def refuse_repeated(names: "list[str]") -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise EnnError(f"the table has several columns of one name: {', '.join(repeated)}", "rename them")


def plain(table):
    """Returns the table with columns of types that `enn` reads: durations become seconds, and extension types what they are stored as.

    Columns of other types stay as they are. They are refused where they are used.
    """
    pyarrow = arrow()
    refuse_repeated(table.column_names)
    for number, field in enumerate(table.schema):
        kind = field.type
        column = table.column(number)
        if isinstance(kind, pyarrow.BaseExtensionType):
            column = of_extension(column)
        elif pyarrow.types.is_duration(kind):
            unit = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[kind.unit]
            column = pyarrow.compute.divide(column.cast("int64").cast("float64", safe=False), unit)
        else:
            continue
        table = table.set_column(number, field.name, column)
    return table


def of_extension(column):
    """Converts a column of an extension type; a period of pandas becomes the time at which it begins."""
    if str(column.type.extension_name) == "pandas.period":
        import pandas

        return arrow().chunked_array([arrow().array(pandas.Series(column.to_pandas()).dt.to_timestamp())])
    return column.cast(column.type.storage_type)


def kind_of(kind) -> "str | None":
    """Returns how `enn` reads a type of Arrow: "number", "category", "time" or "labels"; `None` if it does not."""
    types = arrow().types
    if types.is_dictionary(kind):
        return None if kind_of(kind.value_type) is None else "category"
    if types.is_boolean(kind) or types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "category"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "time"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal128(kind) or types.is_null(kind):
        return "number"
    if types.is_list(kind) or types.is_large_list(kind):
        return None if kind_of(kind.value_type) in (None, "labels") else "labels"
    return None


def has_missing_words(table) -> bool:
    """Returns whether a column of texts has a text that `enn` would read as a missing cell. In a table of Python it is a value, as for Namibia."""
    pyarrow = arrow()
    words = pyarrow.array(MISSING_WORDS)
    for field in table.schema:
        if kind_of(field.type) not in ("category", "labels") or pyarrow.types.is_boolean(field.type):
            continue
        column = table.column(field.name)
        if kind_of(field.type) == "labels":
            column = pyarrow.compute.list_flatten(column)
        distinct = pyarrow.compute.unique(column)
        if pyarrow.types.is_dictionary(distinct.type):
            distinct = distinct.dictionary
        if pyarrow.types.is_integer(distinct.type) or pyarrow.types.is_floating(distinct.type):
            continue
        if pyarrow.compute.any(pyarrow.compute.is_in(distinct.cast("string"), words)).as_py():
            return True
    return False


# A table of at most so many bytes is exchanged in memory: a disk would take most of the time of its prediction.
SMALL_BYTES = 1 << 20
MEMORY = "/dev/shm"
OURS = "enn-table-"
LEFT_S = 600


def is_small(table) -> bool:
    return table is not None and table.nbytes <= SMALL_BYTES


def temporary_directory(table):
    """Returns a directory for files of a prediction, which is removed: in memory for a small table, unless TMPDIR names a place."""
    in_memory = is_small(table) and not os.environ.get("TMPDIR") and os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK)
    if not in_memory:
        return tempfile.TemporaryDirectory(prefix="enn-")
    sweep()
    # Its predictor may be writing there when Ctrl-C ends the prediction.
    return tempfile.TemporaryDirectory(prefix=f"{OURS}{os.getpid()}-", dir=MEMORY, ignore_cleanup_errors=True)


@functools.cache
def sweep() -> None:
    """Removes, once in a process, what killed processes of this user have left in memory."""
    for path in glob.glob(os.path.join(MEMORY, f"{OURS}*-*")):
        process = os.path.basename(path).removeprefix(OURS).partition("-")[0]
        with contextlib.suppress(OSError):
            found = os.stat(path)
            # A process of another container may not be seen from here: what is young stays.
            if found.st_uid == os.getuid() and found.st_mtime < time.time() - LEFT_S and not os.path.exists(f"/proc/{process}"):
                shutil.rmtree(path, ignore_errors=True)


def write(table, path: str) -> None:
    """Writes a file of Arrow."""
    pyarrow = arrow()
    try:
        with pyarrow.OSFile(path, "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    except OSError as error:
        raise EnnError(f"the table could not be written to {path}: {error}", "TMPDIR names another directory for such files") from None


def delimiter_of(path: str) -> str:
    """Returns the delimiter that the header of a text file has most often."""
    with open(path, encoding="utf-8", errors="replace") as file:
        header = file.readline(1 << 22)
    return max(",;\t|", key=header.count)


def load(files: "list[str]"):
    """Returns the table in files of Arrow, Parquet or text."""
    parts = []
    for path in files:
        try:
            parts.append(load_file(path))
        except (OSError, arrow().ArrowException) as error:
            raise EnnError(f"{path} could not be read: {error}") from None
    return arrow().concat_tables(parts, promote_options="permissive")


def load_file(path: str):
    """Returns the table in one file."""
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    ending = os.path.splitext(path)[1].lower()
    if ending == ".parquet":
        return pyarrow.parquet.read_table(path)
    if ending in (".arrow", ".feather"):
        return pyarrow.feather.read_table(path)
    if ending in (".csv", ".tsv", ".txt"):
        return pyarrow.csv.read_csv(path, parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter_of(path)))
    raise EnnError(f"{path} is no file of Parquet, Arrow or text", "read it with pandas, and give the table")
