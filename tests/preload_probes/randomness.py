"""Prints random numbers of every source, which must differ between any two workers."""

import os
import random

import seen

seen.show("random", [random.random() for _ in range(2)])
seen.show("urandom", os.urandom(8))
import uuid  # noqa: E402

seen.show("uuid", uuid.uuid4())
import secrets  # noqa: E402

seen.show("secrets", secrets.token_hex(8))
import tempfile  # noqa: E402

seen.show("tempfile", next(tempfile._get_candidate_names()))
import multiprocessing  # noqa: E402

seen.show("authkey", bytes(multiprocessing.current_process().authkey))
