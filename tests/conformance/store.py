"""PyTorch's own TCPStore client against our store and against PyTorch's server: the same calls, the same answers."""

import datetime
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SECONDS = datetime.timedelta(seconds=20)
SHORT = datetime.timedelta(milliseconds=200)


def client(port):
    return dist.TCPStore("127.0.0.1", port, None, False, SECONDS, wait_for_workers=False, use_libuv=True)


def failure(call):
    """Name of the error `call` raises; None when it raises none."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return None


def every_call(store, other):
    """Answers of a long script; `other` is a second connection to the same server."""
    answers = []
    say = answers.append
    store.set("a", "1")
    say(store.get("a"))
    say(store.add("n", 5))
    say(store.add("n", -7))
    say(store.get("n"))
    say(store.compare_set("a", "1", "2"))
    say(store.compare_set("a", "1", "3"))
    say(store.compare_set("absent", "expected", "wanted"))
    say(store.compare_set("fresh", "", "wanted"))
    say(store.check(["a", "n"]))
    say(store.check(["a", "missing"]))
    say(store.delete_key("fresh"))
    say(store.delete_key("fresh"))
    store.append("log", "ab")
    store.append("log", "cd")
    say(store.get("log"))
    store.multi_set(["k1", "k2", "k3"], ["v1", "", "v" * 100_000])
    say(store.multi_get(["k3", "k1", "k2"]))
    say(store.has_extended_api())
    store.set("bytes", bytes(range(256)))
    say(store.get("bytes"))
    store.set("big", "x" * (7 << 20))
    say(len(store.get("big")))
    store.set("k" * 8000, "long key")
    say(store.get("k" * 8000))
    say(failure(lambda: store.wait(["a", "never"], SHORT)))
    say(store.add("n", 1))  # In step after a cancelled wait.
    store.queue_push("q", "first")
    store.queue_push("q", "second")
    say(store.queue_len("q"))
    say(store.queue_pop("q"))
    say(store.queue_pop("q"))
    say(failure(lambda: store.queue_pop("q", block=False)))
    say(store.queue_len("q"))
    say(sorted(store.list_keys()))
    say(store.num_keys())
    prefixed = dist.PrefixStore("round-3", dist.PrefixStore("inner", store))
    prefixed.set("a", "prefixed")
    say((prefixed.get("a"), store.get("a"), other.get("inner/round-3/a")))
    say(woken(store, other, lambda: other.set("late", "set"), "late"))
    say(woken(store, other, lambda: other.add("late-add", 1), "late-add"))
    say(woken(store, other, lambda: other.compare_set("late-cas", "", "x"), "late-cas"))
    say(woken(store, other, lambda: other.append("late-append", "x"), "late-append"))
    say(woken(store, other, lambda: other.multi_set(["late-multi"], ["x"]), "late-multi"))
    thread = threading.Thread(target=lambda: (time.sleep(0.1), other.queue_push("late-q", "item")))
    thread.start()
    say(store.queue_pop("late-q"))
    thread.join()
    return answers


def woken(store, _other, change, key):
    """Value of `key` for a get that was waiting when `change` made it."""
    thread = threading.Thread(target=lambda: (time.sleep(0.1), change()))
    thread.start()
    value = store.get(key)
    thread.join()
    return value


def concurrent(port, clients=32, each=50):
    """Sum and order of tickets that many clients draw at once."""
    drawn = [[] for _ in range(clients)]

    def draw(mine):
        store = client(port)
        mine.extend(store.add("tickets", 1) for _ in range(each))

    threads = [threading.Thread(target=draw, args=(mine,)) for mine in drawn]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(sum(drawn, [])) == list(range(1, clients * each + 1)), "a ticket was drawn twice or never"


def rank_of_gloo(rank, world, port):
    store = dist.PrefixStore("gloo", client(port))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=SECONDS)
    value = torch.full((1000,), float(rank + 1))
    dist.all_reduce(value)
    assert value.eq(world * (world + 1) / 2).all()
    gathered = [None] * world
    dist.all_gather_object(gathered, {"rank": rank, "text": "é" * rank})
    assert [item["rank"] for item in gathered] == list(range(world))
    dist.monitored_barrier(timeout=SECONDS)
    dist.destroy_process_group()


def main():
    server = subprocess.Popen([Path(os.environ["ENN_BIN_DIR"], "store_server")], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline())
        reference = dist.TCPStore("127.0.0.1", 0, None, True, SECONDS, wait_for_workers=False, use_libuv=True)
        ours = every_call(client(port), client(port))
        theirs = every_call(client(reference.port), client(reference.port))
        for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            assert our == their, f"answer {index}: ours {our!r}, PyTorch's {their!r}"
        concurrent(port)
        mp.spawn(rank_of_gloo, args=(3, port), nprocs=3)
        assert client(port).get("a") == b"2", "the store lives on after its clients have gone"
        print(f"{len(ours)} answers equal PyTorch's; {32 * 50} tickets; gloo of 3 met in our store")
    finally:
        server.stdin.close()
        server.wait(timeout=10)


if __name__ == "__main__":
    sys.exit(main())
