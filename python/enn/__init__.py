"""The Python side of ENN. `enn.elastic` keeps the training of a script alive when one of its processes dies.

Importing this package imports neither torch nor NumPy.
"""

__version__ = "0.1.0"
