# Begins every script: a line of JSON each way with whoever started it, and an end when their end of the pipe closes. What libraries
# print goes to standard error.
import json, os, queue, resource, sys, threading
from importlib import metadata

_said = os.fdopen(os.dup(1), "w")
_heard = os.fdopen(os.dup(0))
os.dup2(2, 1)
sys.stdout.reconfigure(line_buffering=True)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
_lines = queue.SimpleQueue()


def say(what):
    _said.write(json.dumps(what) + "\n")
    _said.flush()


def hear():
    return json.loads(_lines.get())


def _listen():
    for line in _heard:
        _lines.put(line)
    os.killpg(0, 9)


threading.Thread(target=_listen, daemon=True).start()
job = hear()
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
_most = resource.getrlimit(resource.RLIMIT_DATA)[1]
_most = job["memory_bytes"] if _most == resource.RLIM_INFINITY else min(job["memory_bytes"], _most)
resource.setrlimit(resource.RLIMIT_DATA, (_most, _most))
versions = {"python": sys.version.split()[0]}
for name, wanted in job["pins"].items():
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        say({"unavailable": f"{sys.executable} has no {name} {wanted}"})
        sys.exit()
    if versions[name].split("+")[0] != wanted:
        say({"unavailable": f"{sys.executable} has {name} {versions[name]}, expected {wanted}"})
        sys.exit()
