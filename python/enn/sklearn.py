"""Estimators of scikit-learn that train with `enn`. scikit-learn is imported when this module is.

Each of them has the settings that `enn.train` has as parameters of its constructor; `settings` takes all other keys of a
configuration, such as {"train.ema": 0.9, "model.d_model": 64}. A fitted estimator can be pickled: it contains its model.
"""

import contextlib
import io
import os
import shutil
import tarfile
import tempfile
import weakref
from pathlib import Path

import numpy
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y, column_or_1d, validate_data

from . import tables
from .runs import Run
from .training import train

__all__ = ["ENNClassifier", "ENNForecaster", "ENNRegressor"]
TARGET, WEIGHT = "target", "weight"
# A prediction reads these parts of a run; a pickled estimator contains them.
MODEL_PARTS = ("run.json", "MANIFEST.json", "events.jsonl", "python.arrow", "staged/meta.json", "checkpoints")


class _Estimator(BaseEstimator):
    """What the estimators share: parameters, the run, and pickles."""

    def __init__(
        self,
        *,
        epochs=None,
        patience=None,
        batch=None,
        lr=None,
        loss=None,
        categories=None,
        validation_fraction=0.15,
        baselines="quick",
        random_state=None,
        workers=None,
        device=None,
        runs_dir=None,
        progress=False,
        settings=None,
    ):
        self.epochs = epochs
        self.patience = patience
        self.batch = batch
        self.lr = lr
        self.loss = loss
        self.categories = categories
        self.validation_fraction = validation_fraction
        self.baselines = baselines
        self.random_state = random_state
        self.workers = workers
        self.device = device
        self.runs_dir = runs_dir
        self.progress = progress
        self.settings = settings

    @property
    def run_(self) -> Run:
        """The run of `fit`: its report, metrics and path."""
        check_is_fitted(self, "_model")
        return self._model.run

    def _train(self, table, target, **columns):
        """Trains on a table, and keeps the run."""
        named = ("epochs", "patience", "batch", "lr", "loss")
        settings = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        sections = {"data": {}, "model": {}, "cluster": {}, "train": settings}
        for key, value in (self.settings or {}).items():
            *path, name = key.split(".")
            if not path or path[0] not in sections:
                raise ValueError(f'settings has the key "{key}", expected keys such as "train.ema", "model.d_model" or "data.units"')
            section = sections
            for part in path:
                section = section.setdefault(part, {})
            section[name] = value
        options = {
            "val": self.validation_fraction,
            "test": 0.0,
            "seed": _seed(self.random_state),
            "workers": self.workers,
            "device": self.device,
            "baselines": self.baselines,
            "progress": self.progress,
            "data": sections["data"],
            "model": sections["model"],
            "cluster": sections["cluster"],
        }
        folder = tempfile.mkdtemp(prefix="enn-runs-") if self.runs_dir is None else None
        try:
            run = train(table, target, runs_dir=folder or self.runs_dir, **options, **columns, **sections["train"])
        except BaseException:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        self._model = _Model(run, folder)
        self.n_iter_ = int(run.epochs)

    def _checked(self, X, *, reset: bool):
        """Returns X as a table: a DataFrame as it is, anything else as an array of numbers."""
        if hasattr(X, "columns") or hasattr(X, "column_names"):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        return validate_data(self, X, reset=reset, ensure_all_finite="allow-nan", dtype="numeric")

    def _predictions(self, X, **options):
        check_is_fitted(self, "_model")
        return self._model.run.predict(X, progress=False, **options)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags


class _Supervised(_Estimator):
    """An estimator that learns from X and y."""

    def _fit(self, X, y, sample_weight, task: str, names: "list[str]"):
        """Trains on X with the columns of y, which get names, and weights beside it."""
        table = tables.read(X).table
        features = table.column_names
        for number, name in enumerate(names):
            names[number] = _free(name, table.column_names)
            table = table.append_column(names[number], tables.arrow().array(y if y.ndim == 1 else y[:, number]))
        weight = None
        if sample_weight is not None:
            weight = _free(WEIGHT, table.column_names)
            table = table.append_column(weight, tables.arrow().array(sample_weight))
        self._train(table, names, task=task, weight=weight, categories=self.categories, features=features)
        return self

    def _table(self, X):
        """Returns X as a table of Arrow, so that the answer is one, too."""
        check_is_fitted(self, "_model")
        return tables.read(self._checked(X, reset=False)).table


class ENNRegressor(RegressorMixin, _Supervised):
    """A regressor. y has the shape (rows,) or (rows, targets). Predictions have the shape (rows,) for one target, and the dtype of y, or float64.

    Parameters
    ----------
    epochs, patience, batch, lr, loss
        Keys of [train]: by default they follow from the data.
    categories : list of str
        Columns of numbers that are categories. Texts, booleans and categories of a DataFrame are categories anyway.
    validation_fraction : float
        Share of the rows that choose the best weights, and are not trained on.
    random_state : int, RandomState or None
        None is 0: two fits are equal.
    workers, device, runs_dir, progress, baselines
        As in `enn.train`. Without `runs_dir` the run is in a temporary directory that ends with the estimator.
    settings : dict
        Further keys, e.g. {"train.ema": 0.9, "model.d_model": 64}.

    Attributes
    ----------
    run_ : enn.Run
    n_features_in_, feature_names_in_, n_iter_
    """

    def fit(self, X, y, sample_weight=None):
        """Trains on the rows of X. Returns self."""
        X = self._checked(X, reset=True)
        names = _names_of(y)
        _, y = check_X_y(numpy.zeros((_rows(X), 1)), y, multi_output=True, y_numeric=True, estimator=self)
        _require_rows(X, 2)
        return self._fit(X, y, _weights(sample_weight, X), "regression", names if y.ndim == 2 else names[:1])

    def predict(self, X):
        """Returns an array of the shape of y. A row without any valid input has the value NaN."""
        answers = self._predictions(self._table(X))
        columns = [answers.column(name).to_numpy() for name in answers.column_names if "@" not in name]
        return columns[0] if len(columns) == 1 else numpy.column_stack(columns)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class ENNClassifier(ClassifierMixin, _Supervised):
    """A classifier of one target. Parameters and attributes are those of `ENNRegressor`, and `classes_`, the sorted classes."""

    def fit(self, X, y, sample_weight=None):
        """Trains on the rows of X. Returns self."""
        X = self._checked(X, reset=True)
        names = _names_of(y)[:1]
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        _, codes = numpy.unique(y, return_inverse=True)
        check_X_y(numpy.zeros((_rows(X), 1)), codes, estimator=self)
        self.classes_ = numpy.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(f"Classifier can't train when only one class is present: {self.classes_[0]!r}")
        weights = _weights(sample_weight, X)
        if weights is not None and len(numpy.unique(codes[weights > 0])) < 2:
            raise ValueError("Classifier can't train when only one class is present after trimming rows without weight")
        texts = numpy.array([str(value) for value in self.classes_], object)
        return self._fit(X, texts[codes], weights, "classification", names)

    def predict_proba(self, X):
        """Returns the probability of each class, in the order of `classes_`: an array of shape (rows, classes)."""
        answers = self._predictions(self._table(X))
        target = answers.column_names[0]
        probabilities = numpy.zeros((answers.num_rows, len(self.classes_)))
        places = {str(value): place for place, value in enumerate(self.classes_)}
        for name in answers.column_names[1:]:
            label = name[len(target) + 1 :]
            place = places.get(label)
            if place is None:
                place = next(at for text, at in places.items() if _is_same_number(text, label))
            probabilities[:, place] = answers.column(name).to_numpy()
        with numpy.errstate(invalid="ignore"):
            return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict(self, X):
        """Returns the most probable class of each row; for a row without any valid input the first one."""
        places = numpy.nan_to_num(self.predict_proba(X)).argmax(axis=1)
        return self.classes_[places]


class ENNForecaster(RegressorMixin, _Estimator):
    """A forecaster of one or several series, in a long table with columns of times, series and the target.

    Parameters
    ----------
    target, time : str
        Columns of X.
    horizon : int
        Number of steps to forecast.
    series : str or None
        The column that tells the series apart.
    step, history
        As in `enn.train`.

    The others are those of `ENNRegressor`. Validation rows are the latest ones.
    """

    def __init__(
        self,
        target="y",
        time="time",
        horizon=24,
        *,
        series=None,
        step=None,
        history=1,
        epochs=None,
        patience=None,
        batch=None,
        lr=None,
        loss=None,
        validation_fraction=0.15,
        baselines="quick",
        random_state=None,
        workers=None,
        device=None,
        runs_dir=None,
        progress=False,
        settings=None,
    ):
        super().__init__(
            epochs=epochs,
            patience=patience,
            batch=batch,
            lr=lr,
            loss=loss,
            validation_fraction=validation_fraction,
            baselines=baselines,
            random_state=random_state,
            workers=workers,
            device=device,
            runs_dir=runs_dir,
            progress=progress,
            settings=settings,
        )
        self.target = target
        self.time = time
        self.horizon = horizon
        self.series = series
        self.step = step
        self.history = history

    def fit(self, X, y=None):
        """Trains on a table that contains the target; y is not used. Returns self."""
        if not (hasattr(X, "columns") or hasattr(X, "column_names")):
            raise ValueError(f"X is a {type(X).__name__}, expected a table with the columns of times and the target")
        self._checked(X, reset=True)
        self._train(X, self.target, time=self.time, series=self.series, horizon=self.horizon, step=self.step, history=self.history)
        return self

    def predict(self, X):
        """Returns the forecast that follows the last target in X: a table with the columns of series and time, and the target."""
        return self._predictions(X)

    def score(self, X, y=None, sample_weight=None):
        """Returns R² of the forecasts of those windows in X that the targets before them in X allow; y is not used."""
        from sklearn.metrics import r2_score

        expected, forecast = self._pairs(X)
        return r2_score(expected, forecast, sample_weight=sample_weight)

    def _pairs(self, X):
        """Returns the targets in X that have a forecast, and their forecasts."""
        from .configuration import in_seconds

        table = tables.read(X).table
        answers = self._predictions(table, past=True)

        def keys(rows):
            series = rows.column(self.series).to_pylist() if self.series else [None] * rows.num_rows
            return zip(series, in_seconds(rows.column(self.time)).to_pylist())

        found = dict(zip(keys(answers), answers.column(self.target).to_pylist()))
        pairs = [(value, found.get(key)) for key, value in zip(keys(table), table.column(self.target).to_pylist())]
        pairs = [pair for pair in pairs if None not in pair and not any(numpy.isnan(part) for part in pair)]
        if not pairs:
            raise ValueError("no target in X has a forecast: a window needs the windows before it as history")
        expected, forecast = numpy.array(pairs, float).T
        return expected, forecast


class _Model:
    """A run, and the temporary directory that it may be in, which ends with the model. Pickled as the files that a prediction needs."""

    def __init__(self, run: Run, folder: "str | None"):
        self.run = run
        if folder is not None:
            weakref.finalize(self, shutil.rmtree, folder, True)

    def __getstate__(self):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for part in MODEL_PARTS:
                with contextlib.suppress(FileNotFoundError):
                    archive.add(self.run.path / part, part)
        return {"name": self.run.name, "files": packed.getvalue()}

    def __setstate__(self, state):
        folder = tempfile.mkdtemp(prefix="enn-runs-")
        path = Path(folder, os.path.basename(state["name"]))
        with tarfile.open(fileobj=io.BytesIO(state["files"])) as archive:
            archive.extractall(path, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(path)
        self.__init__(Run(path), folder)


def _seed(random_state) -> int:
    if random_state is None or isinstance(random_state, (int, numpy.integer)):
        return int(random_state or 0)
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(1 << 31))


def _names_of(y) -> "list[str]":
    """Returns names for the columns of y: those of a DataFrame or a Series, else "target" or "target_0" and so on."""
    if getattr(y, "name", None):
        return [str(y.name)]
    if hasattr(y, "columns"):
        return [str(name) for name in y.columns]
    shape = numpy.asarray(y).shape
    return [f"{TARGET}_{number}" for number in range(shape[1])] if len(shape) == 2 else [TARGET]


def _rows(X) -> int:
    return X.num_rows if hasattr(X, "num_rows") else len(X)


def _require_rows(X, least: int) -> None:
    if _rows(X) < least:
        raise ValueError(f"Found array with {_rows(X)} sample(s) while a minimum of {least} is required: n_samples = {_rows(X)}")


def _weights(sample_weight, X):
    """Returns weights as an array, or `None` if all are equal."""
    if sample_weight is None:
        return None
    from sklearn.utils.validation import _check_sample_weight

    return _check_sample_weight(sample_weight, numpy.zeros((_rows(X), 1)), ensure_non_negative=True)


def _free(name: str, taken: "list[str]") -> str:
    """Returns a name that no column has."""
    while name in taken:
        name += "_"
    return name


def _is_same_number(one: str, other: str) -> bool:
    with contextlib.suppress(ValueError):
        return float(one) == float(other)
    return one.lower() == other.lower()
