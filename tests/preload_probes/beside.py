"""Imports modules that lie beside the script or on a path that the script adds."""

import os
import sys

import seen

if "path" in sys.argv:
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "more"))
import json  # noqa: E402

seen.show("json", (json.__file__.startswith(os.path.dirname(os.path.abspath(__file__))), getattr(json, "OWN", None)))
