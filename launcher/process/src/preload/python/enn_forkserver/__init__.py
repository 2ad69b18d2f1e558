"""The fork server of `enn run --preload`: imports once, and forks each worker in a few milliseconds.

Pure standard library, for CPython 3.10 and newer on Linux. `start` is the entry, `serve` the loop, `ledger` and `stash`
what makes a preloaded module appear only when a script imports it, `guard` what makes a wrong environment an ordinary
start, `become` what turns a forked process into the worker, which is `adopted` by the launcher or the server's `own`.

`warm` is a server that lives between runs: `joining` says whether it suits a run, `run_server` serves one, `config` is
how its workers run a script that it was not started for, and `selfcheck` proves at each start that they do.
"""
