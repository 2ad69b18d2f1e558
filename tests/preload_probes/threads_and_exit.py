"""A thread that outlives the main one, handlers at exit, objects with destructors, and logging's last words."""

import atexit

atexit.register(print, "registered before the imports")
import gc
import logging
import sys
import threading
import time
import weakref


import noisy_import  # noqa: F401


class Noisy:
    """Says when it goes."""

    def __init__(self, name):
        self.name = name

    def __del__(self):
        sys.stdout.write(f"destructor of {self.name}\n")


def later():
    """Runs after the main thread has ended."""
    time.sleep(0.2)
    print("thread ends", threading.main_thread().is_alive())


atexit.register(print, "first handler")
atexit.register(print, "second handler")
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(name)s %(message)s %(threadName)s")
logging.info("logged")
kept = Noisy("kept")
weakref.finalize(kept, print, "finalizer")
Noisy("dropped")
cycle = Noisy("cycle")
cycle.cycle = cycle
del cycle
gc.collect()
thread = threading.Thread(target=later)
thread.start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("main ends", threading.active_count())
