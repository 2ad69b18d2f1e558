"""`enn.train`: from a table to a run."""

import json
import os
import re
import tempfile
from pathlib import Path

from . import configuration, predictions, progress, tables, values
from .errors import EnnError, entrance
from .runs import Run

COLUMN_SETTINGS = ("features", "exclude", "categories", "time", "series", "horizon", "step", "history", "task", "weight", "group")
CLUSTER_KEYS = {"workers": "nproc_per_node", "device": "device"}


# More parameters than elsewhere: they are what a user sees in an editor, and each of them is a column or a setting of its own.
@entrance
def train(
    table,
    target=None,
    *,
    features=None,
    exclude=None,
    categories=None,
    task=None,
    time=None,
    series=None,
    horizon=None,
    step=None,
    history=None,
    weight=None,
    group=None,
    val=None,
    test=None,
    seed=None,
    name=None,
    runs_dir=None,
    workers=None,
    device=None,
    baselines="all",
    progress=True,
    data=None,
    model=None,
    cluster=None,
    **settings,
) -> Run:
    """Trains a model on a table, and compares it with baselines.

    table: a DataFrame of pandas or polars, a table of Arrow, an array of NumPy, a dictionary of columns, or the path of a
        CSV, Parquet or Arrow file (or a list of them). The path of a configuration (.toml) is taken, too.
    target: the column to predict, or a list of columns. Texts, booleans and categories make it a classification.
    features: the columns to predict from; by default all others. Kinds follow from their types: numbers, times, categories, lists of labels.
    exclude: columns that are not used. categories: columns of numbers that are categories.
    task: "regression" or "classification", where the type of the target does not tell.
    time: the column of times. Validation and test rows are then the latest ones.
    horizon: makes it a forecast of so many steps. series: the column that tells the series apart; step: the time between two steps
        (seconds, a timedelta, "1h"; by default the usual distance of the times); history: windows of `horizon` steps that are inputs.
    weight: the column of weights of rows. group: rows with the same value stay together when the table is split.
    val, test: shares of the rows for validation and test (0.15 each).
    seed, name: of the run. runs_dir: where runs are kept (ENN_RUNS, else ./runs).
    workers, device: how many processes, and on what: "cpu" or "cuda".
    baselines: "all", or "quick" for those that cost nothing.
    progress: whether it is shown.
    settings: keys of the section [train] of a configuration: epochs, patience, batch, lr, loss, levels, precision, …
    data, model, cluster: dictionaries with keys of these sections.

    Ctrl-C stops the training in good order: the run has the best weights until then, and `run.stopped` is true. If there are none yet, or
    after a second Ctrl-C, KeyboardInterrupt is raised. Raises `EnnError`.
    """
    arguments_given = {key: value for key, value in locals().items() if value is not None}
    given = {key: value for key, value in arguments_given.items() if key in COLUMN_SETTINGS}
    split = {key: value for key, value in arguments_given.items() if key in ("val", "test")}
    cluster = {key: arguments_given[setting] for setting, key in CLUSTER_KEYS.items() if setting in arguments_given} | (cluster or {})
    sections = {"seed": seed, "name": name, "data": data or {}, "train": settings, "model": model or {}, "cluster": cluster}
    arguments = ["--baselines", str(baselines)]
    if runs_dir is not None:
        if "://" in str(runs_dir):
            raise EnnError(f"runs_dir is {runs_dir}, and runs of Python are kept in directories", "`enn train --runs-dir` takes addresses")
        arguments += ["--runs-dir", os.path.abspath(os.fspath(runs_dir))]
    if is_configuration(table):
        if target is not None or given:
            raise EnnError(f"{table} is a configuration, which names target and columns itself", "leave the names of columns out")
        return train_configuration(os.path.abspath(os.fspath(table)), sections, split, arguments, progress)
    return train_table(table, target, given, sections, split, arguments, progress)


def is_configuration(table) -> bool:
    return isinstance(table, (str, os.PathLike)) and os.fspath(table).endswith(".toml")


def train_configuration(path: str, sections: dict, split: dict, arguments: "list[str]", is_shown: bool) -> Run:
    """Trains by a configuration that exists; settings change its keys."""
    keys = {key: value for key, value in sections.items() if value is not None and not isinstance(value, dict)}
    for section in ("data", "train", "model", "cluster"):
        keys |= {f"{section}.{key}": value for key, value in sections[section].items()}
    keys |= {f"data.split.{key}": value for key, value in split.items()}
    changes = [word for key, value in keys.items() for word in ("--set", f"{key}={configuration.value_text(value)}")]
    return start([path, *changes, *arguments], is_shown, {})


def train_table(table, target, given: dict, sections: dict, split: dict, arguments: "list[str]", is_shown: bool) -> Run:
    """Trains on a table or on files: writes what is used of the table, and a configuration."""
    with tempfile.TemporaryDirectory(prefix="enn-") as directory:
        source = Source(table, target, given, directory)
        columns = source.columns
        data = merged(merged(source.data(), sections["data"]), {"split": split} if split else {})
        name = run_name(sections["name"] or (Path(tables.paths(table)[0]).stem if tables.is_path(table) else "-".join(columns.targets)[:40]))
        seed = {} if sections["seed"] is None else {"seed": sections["seed"]}
        document = {"name": name, **seed, "data": data, **{section: sections[section] for section in ("train", "model", "cluster")}}
        path = os.path.join(directory, "settings.toml")
        Path(path).write_text(configuration.toml(document), encoding="utf-8")
        names = {re.escape(os.path.join(directory, "table.arrow")): "the table", f"{re.escape(path)}(:[0-9]+:[0-9]+)?: ": ""}
        run = start([path, *arguments], is_shown, names)
        keep_values(run, columns, source.rows)
        return run


class Source:
    """What a model is trained on: files, the roles of their columns, and the rows if they are in memory.

    Rows in memory are written to a file in a directory. Files are used where they are; those of a forecast are read as well, for the distance of its times.
    """

    def __init__(self, table, target, given: dict, directory: str):
        is_forecast = given.get("horizon") is not None
        self.files = tables.paths(table) if tables.is_path(table) else []
        frame = None
        if not self.files:
            frame = tables.read(table, is_wanted(target, given))
        elif is_forecast:
            frame = tables.Frame(tables.plain(tables.load(self.files)), "file")
        self.rows = None if frame is None else frame.table
        schema = tables.plain(tables.schema_of_file(self.files).empty_table()).schema if frame is None else frame.table.schema
        if is_forecast and given.get("series") is None:
            self.rows = predictions.with_one_series(self.rows, str(target))
            schema = self.rows.schema
            given = {**given, "series": predictions.ONE_SERIES}
            self.files = []
        try:
            names = list(dict.fromkeys([*(getattr(frame, "names", None) or []), *schema.names]))
            self.columns = configuration.Columns(schema, names, target, given)
        except EnnError as error:
            asked = {str(name) for value in (target, *given.values()) for name in configuration.listed(value)}
            if asked & set(getattr(getattr(frame, "index", None), "names", [])):
                error.hint = "frame.reset_index() makes columns of the index"
            raise
        if not self.files:
            self.files = [os.path.join(directory, "table.arrow")]
            self.rows = self.rows.select(self.columns.used())
            tables.write(self.rows, self.files[0])
        if frame is None or frame.kind == "file":
            self.has_missing_words = tables.files_have_missing_words(self.files if frame is None else tables.paths(table), self.columns.used())
        else:
            self.has_missing_words = tables.has_missing_words(self.rows)

    def data(self) -> dict:
        """Returns the section `data` of the configuration."""
        data = self.columns.data(self.files, self.rows)
        return {**data, "missing_only": []} if self.has_missing_words else data


def is_wanted(target, given: dict):
    """Returns a function that says whether a column may be of use: it is not excluded, or it is named, if features are named."""
    if given.get("features") is None:
        away = set(configuration.listed(given.get("exclude")))
        return lambda name: name not in away
    roles = [target, given["features"], *(given.get(role) for role in ("time", "series", "weight", "group"))]
    names = {part.get("column") if isinstance(part, dict) else part for role in roles for part in configuration.listed(role)}
    return lambda name: name in names


def merged(section: dict, changes: dict) -> dict:
    """Returns a section with changed keys; a section in it keeps the keys that are not changed."""
    both = {key: {**section[key], **value} for key, value in changes.items() if isinstance(value, dict) and isinstance(section.get(key), dict)}
    return {**section, **changes, **both}


def run_name(name: str) -> str:
    """Returns a name for a directory made of a text."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in str(name)).strip("-.") or "run"


def start(arguments: "list[str]", is_shown: bool, names: "dict[str, str]") -> Run:
    """Runs `enn train`; returns the run that it made. A run that was stopped before it had a model is `KeyboardInterrupt`."""
    outcome = progress.run(["train", *arguments], is_shown, names)
    if outcome.is_stopped and (outcome.run is None or not any(Path(outcome.run).glob("checkpoints/*/manifest.json"))):
        raise KeyboardInterrupt
    if outcome.run is None:
        raise EnnError("enn began no run")
    return Run(outcome.run)


def keep_values(run: Run, columns: configuration.Columns, rows) -> None:
    """Keeps the types and values of a table by which predictions are given back."""
    if rows is None:
        return
    if columns.is_forecast:
        return values.keep(run.path, rows, [columns.series, columns.time, *columns.targets], cells_of(run))
    values.keep(run.path, rows, columns.targets, cells_of(run) if columns.is_classification() else None)


def cells_of(run: Run) -> "list[str]":
    """Returns the labels of the first axis of what the run predicts: classes or series."""
    return json.loads((run.path / "staged" / "meta.json").read_text())["out_labels"][0]
