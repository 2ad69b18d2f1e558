"""The Python side of ENN.

    import enn

    run = enn.train(frame, target="sales")      # a DataFrame, a table of Arrow, an array, or the path of a file
    run.predict(frame)                          # the same kind of table, with the same index
    run.metrics["test"]["mae"]
    run.report                                  # drawn by a notebook
    enn.load(run.path).predict(frame)

`enn.sklearn` has the estimators `ENNRegressor`, `ENNClassifier` and `ENNForecaster`. `enn.elastic` keeps the training of a
script alive when one of its processes dies.

Importing this package imports neither torch nor NumPy.
"""

__version__ = "0.1.0"
__all__ = ["EnnError", "Report", "Run", "load", "train"]

# Where each public name is; a module is its own home.
_HOMES = {"elastic": None, "sklearn": None, "EnnError": "errors", "Report": "runs", "Run": "runs", "load": "runs", "train": "training"}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    home = importlib.import_module(f"{__name__}.{_HOMES[name] or name}")
    value = home if _HOMES[name] is None else getattr(home, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_HOMES})
