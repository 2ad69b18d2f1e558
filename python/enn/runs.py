"""Runs: what a training leaves, and predictions with it."""

import json
import os
import re
from pathlib import Path

from . import configuration, predictions, predictor, program, tables
from . import progress as progress_of
from .errors import EnnError, entrance, failed, printed_error, warn


class Run:
    """A training: its directory, figures, report and predictions.

    `path` is the directory, `name` its name, `stopped` whether Ctrl-C or a signal ended the training before its time: then the
    run has the best weights until then.
    """

    def __init__(self, path: "str | os.PathLike"):
        self.path = Path(path).absolute()
        self.name = self.path.name
        self._metrics = None
        self._keeper = predictor.Keeper(self.path)

    def __getstate__(self) -> dict:
        return {"path": self.path}

    def __setstate__(self, state: dict) -> None:
        self.__init__(state["path"])

    def __enter__(self) -> "Run":
        self._keeper.idle = None
        return self

    def __exit__(self, *_error) -> None:
        self._keeper.idle = predictor.IDLE_S
        self.close()

    def close(self) -> None:
        """Ends the process that keeps the model loaded between predictions. The next prediction starts another one.

        It also ends with this object and with Python, and after a minute without a prediction. In `with run:` it stays until the end of the block.
        """
        self._keeper.close()

    def __repr__(self) -> str:
        try:
            figures = [f"{name} {progress_of.error_of(part)}" for name, part in progress_of.by_part(self.metrics) if name != "train"]
        except EnnError:
            figures = []
        return f"<enn.Run {self.name}: {', '.join([*figures, *(['stopped'] if self.stopped else [])]) or 'no figures'}>"

    @property
    def stopped(self) -> bool:
        """Whether the training was stopped before its end."""
        return self._last("run_ended").get("code") in progress_of.STOPPED_CODES

    @property
    def epochs(self) -> int:
        """The number of epochs that were trained."""
        return self._last("epoch_ended").get("epoch", 0)

    def _last(self, event: str) -> dict:
        """Returns the last event of a kind in the journal, or an empty dictionary."""
        found = b"{}"
        sought = f'"event":"{event}"'.encode()
        with open(self.path / "events.jsonl", "rb") as journal:
            for line in journal:
                if sought in line:
                    found = line
        return json.loads(found)

    @property
    @entrance
    def metrics(self) -> dict:
        """The errors of the best weights: `metrics["test"]["mae"]`, likewise for "val" and "train", and `metrics["baselines"]["ridge"]["mae"]`.

        Keys are those of `enn metrics --json` (mae, rmse, r2, loss, accuracy, n, …) as far as they apply. A run that was stopped has "val" only.
        """
        if self._metrics is None:
            code, text, error = program.output(["metrics", str(self.path), "--json"])
            if code != 0:
                raise printed_error(error, code)
            told = json.loads(text)
            baselines = {name: applicable(figures) for name, figures in (told.get("baselines") or {}).items()}
            self._metrics = {name: applicable(figures) for name, figures in told["split"].items()} | {"baselines": baselines}
        return self._metrics

    @property
    def report(self) -> "Report":
        """The report of the training. A notebook draws it; `report.path` is the page."""
        return Report(self)

    @entrance
    def resume(self, *, progress: bool = True, **settings) -> "Run":
        """Goes on with a training that was stopped, or trains a finished one for more epochs: `run.resume(epochs=100)`.

        settings: keys of the section [train]. The rows are those of the run, which keeps them. Returns this run. Raises `EnnError`.
        """
        changes = [word for key, value in settings.items() for word in ("--set", f"train.{key}={configuration.value_text(value)}")]
        self._resume(["train", "--resume", str(self.path), "--staged", os.path.realpath(self.path / "staged"), *changes], progress)
        return self

    def _resume(self, arguments: "list[str]", is_shown: bool) -> None:
        self._metrics = None
        progress_of.run(arguments, is_shown, {})

    @entrance
    def predict(self, table, *, out=None, past: bool = False, allow_unseen: bool = False, progress: bool = False):
        """Predicts each row of a table, or what follows after the end of its series.

        table: a table of any kind that `enn.train` takes, or paths. The target may be absent, except in a forecast.
        out: a path (NAME.parquet, .arrow, .csv): `enn` writes its own columns there, and the path is returned.
        past: a forecast also has the windows of the past, so that they can be compared with what came.
        allow_unseen: predict although most categories of a column are unknown to the model.

        Returns a table of the same kind as the given one (for paths one of Arrow), with the same index:

        - regression: a column for each target, of its type (float64 if that is no floating type), and `TARGET@LEVEL` for each quantile;
        - classification: the column TARGET with the most probable class, and `TARGET=CLASS` with the probability of each class (float32);
        - forecast: a row for each series and time after the last target, with the columns of series and time, the target, and quantiles.

        For an array of NumPy it is an array of shape (rows,) or (rows, targets), or of classes. A row without a prediction has missing values, and a
        `RuntimeWarning` tells the reason. Raises `EnnError`.
        """
        description = predictions.Description(self.path)
        files = tables.paths(table) if tables.is_path(table) else []
        frame = None
        if not files:
            frame = tables.read(table, description.is_wanted)
        elif description.is_forecast and out is None:
            frame = tables.Frame(tables.plain(tables.load(files)), "arrow")
        if progress or frame is None or frame.table.num_rows > predictor.ROWS_MAX:
            return self._predict(description, frame, files, out, past, allow_unseen, progress)
        self._keeper.prepare()
        return self._predict(description, frame, files, out, past, allow_unseen, None)

    def _predict(self, description, frame, files: "list[str]", out, past: bool, allow_unseen: bool, is_shown: "bool | None"):
        """Predicts with the process that keeps the model loaded, or if `is_shown` is known with one that shows its progress or does not."""
        given = None if frame is None else description.wanted(frame.table)
        with tables.temporary_directory(given) as directory:
            target = os.path.abspath(os.fspath(out)) if out is not None else os.path.join(directory, "predictions")
            if given is not None:
                files = [os.path.join(directory, "table.arrow")]
                tables.write(given, files[0])
            names = {re.escape(os.path.join(directory, "table.arrow")): "the table", "--allow-unseen": "allow_unseen=True"}
            if is_shown is None:
                request = {"data": files, "out": target, "allow_unseen": allow_unseen, "replace": out is not None}
                self._ask(request | ({"scratch": directory} if tables.is_small(given) else {}), names)
            else:
                arguments = ["predict", str(self.path), *(word for file in files for word in ("--data", file)), "--out", target]
                arguments += ["--allow-unseen"] if allow_unseen else []
                arguments += ["--replace"] if out is not None else []
                if progress_of.run(arguments, is_shown, names).is_stopped:
                    raise KeyboardInterrupt
            if out is not None:
                return Path(target)
            answers = predictions.Answers(description, target)
        if description.is_forecast:
            last = configuration.last_time(frame.table, description.time, description.targets[0])
            return frame.give(answers.forecast(None if past else last), has_rows=False)
        frame = frame or tables.Frame(None, "arrow")
        return frame.give(answers.rows(is_plain=frame.kind == "numpy"))

    def _ask(self, request: dict, names: "dict[str, str]") -> None:
        """Predicts with the process that keeps the model loaded."""
        answer, warnings = self._keeper.predict(request)
        if answer["event"] == "refused":
            raise failed(answer, "", answer["code"], names)
        for warning in warnings:
            warn(warning)


def applicable(figures: dict) -> dict:
    """Returns the figures that there are: a classification has no MAE."""
    return {name: figure for name, figure in figures.items() if figure is not None}


class Report:
    """The report of a run: a page of HTML without links to other files, and a table of errors as text."""

    def __init__(self, run: Run):
        self.path = run.path / "report.html"

    def __str__(self) -> str:
        code, text, error = program.output(["metrics", str(self.path.parent)])
        return (text or error.encode()).decode(errors="replace").rstrip()

    __repr__ = __str__

    @property
    def html(self) -> str:
        """The page as a text."""
        return self.path.read_text(encoding="utf-8")

    def _repr_html_(self) -> str:
        from html import escape

        return f'<iframe srcdoc="{escape(self.html)}" width="100%" height="700" style="border:1px solid #8884" sandbox="allow-scripts"></iframe>'


@entrance
def load(path) -> Run:
    """Returns a run by its directory, or by its name in `ENN_RUNS` or ./runs. Raises `EnnError` if it is not there."""
    places = [Path(path), Path(os.environ.get("ENN_RUNS") or "runs") / path]
    for place in places:
        if (place / "run.json").is_file():
            return Run(place)
    raise EnnError(f"{path} is no run: {' and '.join(str(place / 'run.json') for place in dict.fromkeys(places))} do not exist", "`enn ls` lists runs")
