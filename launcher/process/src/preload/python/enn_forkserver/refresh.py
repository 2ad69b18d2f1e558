"""State that a module determined at its import and that differs in a worker: determined anew at the hand-out."""

import os
import time


def _multiprocessing(module):
    module.ORIGINAL_DIR = os.path.abspath(os.getcwd())
    module.current_process()._config["authkey"] = module.AuthenticationString(os.urandom(32))


def _tempfile(module):
    module.tempdir = None
    module._name_sequence = None


def _threading(module):
    main = module.main_thread()
    if hasattr(main, "_set_native_id"):
        main._set_native_id()


def _logging(module):
    module._startTime = time.time_ns() if isinstance(module._startTime, int) else time.time()


def _numpy(module):
    module._rand.seed()


def _random(module):
    module._inst.seed()


def _torch(module):
    # A fresh torch seeds its CPU generator from the operating system; torch.seed() would touch CUDA as well.
    module.default_generator.seed()


TABLE = {
    "logging": _logging,
    "multiprocessing.process": _multiprocessing,
    "numpy.random.mtrand": _numpy,
    "random": _random,
    "tempfile": _tempfile,
    "threading": _threading,
    "torch": _torch,
}


def module(name, value):
    """Sets the state of one module to what its import would make it now."""
    change = TABLE.get(name)
    if change is not None:
        change(value)
