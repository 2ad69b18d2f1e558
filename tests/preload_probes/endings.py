"""Ends in the way that its argument names."""

import os
import signal
import sys

HOW = sys.argv[1]


def fail(depth):
    """A traceback of some frames."""
    if depth:
        return fail(depth - 1)
    raise ValueError("the reason")


print("begins")
if HOW == "code":
    sys.exit(3)
elif HOW == "message":
    sys.exit("a message")
elif HOW == "none":
    sys.exit(None)
elif HOW == "exception":
    fail(2)
elif HOW == "chained":
    try:
        fail(1)
    except ValueError as error:
        raise RuntimeError("another") from error
elif HOW == "group" and sys.version_info >= (3, 11):
    raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])
elif HOW == "hard":
    os._exit(7)
elif HOW == "segv":
    os.kill(os.getpid(), signal.SIGSEGV)
elif HOW == "abort":
    os.abort()
elif HOW == "fatal":
    # The address of the thread differs from run to run: only whether the handler prints at all.
    child = os.fork()
    if child == 0:
        error = os.open("fatal.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(error, 2)
        os.abort()
    print(os.waitpid(child, 0)[1], "Fatal Python error" in open("fatal.txt").read())
elif HOW == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
elif HOW == "thread":
    import threading
    threading.Thread(target=fail, args=(1,), name="one").start()
elif HOW == "wait":
    import time
    try:
        time.sleep(30)
    finally:
        print("finally")
elif HOW == "handler":
    import time

    def handler(number, frame):
        print("handler", number, frame.f_code.co_name)
        sys.exit(9)

    signal.signal(signal.SIGTERM, handler)
    time.sleep(30)
elif HOW == "unraisable":
    sys.unraisablehook = lambda about: print(type(about.exc_value), about.object.__qualname__, file=sys.stderr)

    class Broken:
        def __del__(self):
            raise OSError("in a destructor")
    Broken()
elif HOW == "recursion":
    sys.setrecursionlimit(60)

    def deep():
        deep()
    deep()
elif HOW == "closed":
    sys.stdout.close()
elif HOW == "import error":
    import json.nothing  # noqa: F401
elif HOW == "preloaded":
    import json
    json.loads("{")
print("ends")
