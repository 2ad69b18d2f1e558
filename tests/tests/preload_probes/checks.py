"""Checks of the server itself: leaks, orphans, refusals, garbage."""

NAMES = {}
