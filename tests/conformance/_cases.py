"""The single cases of a unittest suite, and their names as our lists say them."""

import unittest


def cases(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from cases(one)
        else:
            yield one


def name(case):
    return f"{type(case).__name__}.{case._testMethodName}"
