"""The fork server of `enn run --preload`: imports once, and forks each worker in a few milliseconds.

Pure standard library, for CPython 3.10 and newer on Linux. `start` is the entry, `serve` the loop, `ledger` and `stash`
what makes a preloaded module appear only when a script imports it, `guard` what makes a wrong environment an ordinary
start, `become` what turns a forked process into the worker.
"""
