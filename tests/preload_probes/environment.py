"""Prints the environment, as Python, the C library and a child see it."""

import os
import posix

import seen

seen.show("environ", list(os.environ.items()))
seen.show("environb", list(os.environb.items()))
seen.show("posix", sorted(posix.environ.items()))
import ctypes  # noqa: E402

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
for name in [*os.environ, "ENN_FORKSERVER_FD", "ENN_FORKSERVER_WHAT", "ENN_FORKSERVER_PRELOAD", "TORCH_WARM_POOL",
             "PYTORCH_NVML_BASED_CUDA_CHECK"]:
    seen.show("getenv " + name, libc.getenv(name.encode()))
import subprocess  # noqa: E402

for line in subprocess.run(["/usr/bin/env"], stdout=subprocess.PIPE, check=True).stdout.splitlines():
    seen.show("child", line)
import time  # noqa: E402

seen.show("time zone", (time.tzname, time.timezone, time.localtime(0).tm_hour, time.strftime("%Z", time.localtime(0))))
import tempfile  # noqa: E402

seen.show("temporary folder", (tempfile.gettempdir(), tempfile.gettempprefix()))
import locale  # noqa: E402

seen.show("locale", (locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False)))
