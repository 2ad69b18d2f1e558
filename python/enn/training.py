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
# Errors of `enn train` name its flags: what replaces them are the parameters of `train`.
WORDS = {
    r"--(target|time|series|horizon|task|exclude|weight|group)\b": r"\1",
    r"--feature\b": "features",
    r"--category\b": "categories",
    r"(?m)^--set \S+?=.*?: (?=[a-z_.0-9]+: )": "",
}


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
    target: the column to predict, or a list of columns. Texts, booleans, two different numbers, and a few whole numbers that count from 0 or 1
        make it a classification.
    features: the columns to predict from; by default all that seem to be of use, as `enn new` says. Kinds follow from types, or from the values
        of a text file: numbers, times, categories, lists of labels.
    exclude: columns that are not used. categories: columns of numbers that are categories.
    task: "regression" or "classification", where the values of the target do not tell.
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
    return start([path, *configuration.changes(sections), *configuration.changes({"data": {"split": split}}), *arguments], is_shown, {})


def train_table(table, target, given: dict, sections: dict, split: dict, arguments: "list[str]", is_shown: bool) -> Run:
    """Trains on files, or on a table that is written to one: `enn train` makes the configuration."""
    with tempfile.TemporaryDirectory(prefix="enn-") as directory:
        source = Source(table, target, given, directory)
        name = sections["name"] or (None if tables.is_path(table) else "-".join(source.columns.targets)[:40])
        sections = {**sections, "name": None if name is None else run_name(name)}
        changes = [*configuration.changes({"data": source.data}), *configuration.changes(sections), *configuration.changes({"data": {"split": split}})]
        run = start([*source.files, *source.columns.flags(), *changes, *arguments], is_shown, {re.escape(source.written(directory)): "the table", **WORDS})
        keep_values(run, source.rows)
        return run


class Source:
    """What a model is trained on: files, the roles of their columns, and the rows if they are in memory.

    Rows in memory are written to a file in a directory. Files are used where they are, unless they are a single series, which gets a column that names it.
    """

    def __init__(self, table, target, given: dict, directory: str):
        self.files = tables.paths(table) if tables.is_path(table) else []
        self.rows = None
        self.data = {}
        needs_series = given.get("horizon") is not None and given.get("series") is None
        self.columns = configuration.Columns(target, {**given, "series": predictions.ONE_SERIES} if needs_series else given)
        if self.files and not needs_series:
            return
        frame = tables.Frame(tables.plain(tables.load(self.files)), "file") if self.files else tables.read(table, is_wanted(target, given))
        self.rows = predictions.with_one_series(frame.table, str(target)) if needs_series else frame.table
        names = list(dict.fromkeys([*(frame.names or []), *self.rows.column_names]))
        try:
            self.columns.check_names(names)
        except EnnError as error:
            asked = {str(name) for value in (target, *given.values()) for name in configuration.listed(value)}
            if asked & set(getattr(frame.index, "names", [])):
                error.hint = "frame.reset_index() makes columns of the index"
            raise
        self.rows = self.rows.select(self.columns.used(self.rows.column_names))
        # The file has no excluded column that could be named again.
        self.columns.exclude = []
        self.files = [self.written(directory)]
        tables.write(self.rows, self.files[0])
        if tables.has_missing_words(self.rows):
            self.data = {"missing_only": []}

    @staticmethod
    def written(directory: str) -> str:
        """Returns the file to which rows in memory are written."""
        return os.path.join(directory, "table.arrow")


def is_wanted(target, given: dict):
    """Returns a function that says whether a column may be of use: it is not excluded, or it is named, if features are named."""
    if given.get("features") is None:
        away = set(configuration.listed(given.get("exclude")))
        return lambda name: name not in away
    roles = [target, given["features"], *(given.get(role) for role in ("time", "series", "weight", "group"))]
    names = {part.get("column") if isinstance(part, dict) else part for role in roles for part in configuration.listed(role)}
    return lambda name: name in names


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


def keep_values(run: Run, rows) -> None:
    """Keeps the types and values of a table by which predictions are given back."""
    if rows is None:
        return
    layout = predictions.Description(run.path)
    if layout.is_forecast:
        return values.keep(run.path, rows, [layout.series, layout.time, *layout.targets], cells_of(run))
    values.keep(run.path, rows, layout.targets, cells_of(run) if layout.is_classification else None)


def cells_of(run: Run) -> "list[str]":
    """Returns the labels of the first axis of what the run predicts: classes or series."""
    return json.loads((run.path / "staged" / "meta.json").read_text())["out_labels"][0]
