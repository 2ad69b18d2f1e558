"""Uses multiprocessing in all its ways."""

import concurrent.futures
import multiprocessing
import os
import sys
from multiprocessing import shared_memory

import seen

PARENT = os.getpid()


def describe(number):
    """What a process of a pool sees."""
    main = sys.modules["__main__"]
    return (number * number, __name__, main.__name__, os.path.basename(main.__file__), sys.argv, os.getpid() != PARENT,
            multiprocessing.current_process().name.partition("-")[0], os.environ.get("RANK"))


def fill(name):
    """Writes into shared memory of another process."""
    block = shared_memory.SharedMemory(name=name)
    block.buf[0] = 42
    block.close()


def talk(pipe):
    """Sends through an authenticated channel."""
    pipe.send(("hello", os.getppid() == PARENT if multiprocessing.get_start_method() != "forkserver" else True))


def main():
    seen.show("name", multiprocessing.current_process())
    seen.show("parent", multiprocessing.parent_process())
    seen.show("directory", multiprocessing.process.ORIGINAL_DIR)
    seen.show("methods", multiprocessing.get_all_start_methods())
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            for found in pool.map(describe, range(3)):
                seen.show(method, found)
        queue = context.Queue()
        queue.put([method])
        seen.show(method + " queue", queue.get())
        queue.close()
        queue.join_thread()
        one, other = context.Pipe()
        process = context.Process(target=talk, args=(other,))
        process.start()
        seen.show(method + " pipe", one.recv()[0])
        process.join()
        seen.show(method + " exit code", process.exitcode)
        block = shared_memory.SharedMemory(create=True, size=16)
        process = context.Process(target=fill, args=(block.name,))
        process.start()
        process.join()
        seen.show(method + " shared", block.buf[0])
        block.close()
        block.unlink()
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            seen.show(method + " executor", list(pool.map(abs, [-1, 2])))
    with multiprocessing.Manager() as manager:
        shared = manager.dict(a=1)
        shared["b"] = 2
        seen.show("manager", dict(shared))


if __name__ == "__main__":
    main()
