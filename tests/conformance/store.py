"""PyTorch's own TCPStore client against our store and against PyTorch's server: the same calls, the same answers."""

import contextlib
import datetime
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as distributed_c10d
import torch.distributed.elastic.utils.store as elastic_store
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
    store.queue_push("full", "x")
    say((store.check(["full"]), store.num_keys(), sorted(store.list_keys()), store.queue_len("full")))
    say(sorted(store.list_keys()))
    say(store.num_keys())
    say(store.delete_key("full"))
    say(store.queue_len("never pushed"))
    say(store.check([]))
    say(failure(lambda: store.queue_pop("still empty", block=True) if store.set_timeout(SHORT) is None else None))
    store.set_timeout(SECONDS)
    say(failure(lambda: store.multi_get(["a", "never"]) if store.set_timeout(SHORT) is None else None))
    store.set_timeout(SECONDS)
    say(store.get("a"))  # In step after all of that.
    store.set("", "empty key")
    store.set("nul\0byte é", "")
    say((store.get(""), store.get("nul\0byte é")))
    say(store.compare_set("", "empty key", ""))
    store.append("n", "7")
    say((store.get("n"), store.add("n", 1)))
    say(store.add("large", 2**62))
    say(store.add("large", -(2**63)))
    keys = [f"many-{index}" for index in range(5000)]
    store.multi_set(keys, [key[::-1] for key in keys])
    say(store.multi_get(keys[::-1]) == [key[::-1].encode() for key in keys[::-1]])
    store.wait(keys)
    say(store.check(keys))
    copy = store.clone()
    copy.set("by the clone", "1")
    say((store.get("by the clone"), copy.add("n", 1), copy.port == store.port))
    del copy
    say(store.get("a"))
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


def queue_in_order(port, consumers=8, each=25):
    """Items that many blocked consumers take from one queue: every item once, and to each in the order they were pushed.

    torch's blocking pop is two requests, a wait and a pop; when another consumer's pop comes between them it raises
    QueueEmptyError, with torch's own server as with ours. A consumer then asks again.
    """
    taken = [[] for _ in range(consumers)]

    def consume(mine):
        store = client(port)
        while len(mine) < each:
            with contextlib.suppress(dist.QueueEmptyError):
                mine.append(int(store.queue_pop("work")))

    threads = [threading.Thread(target=consume, args=(mine,)) for mine in taken]
    [thread.start() for thread in threads]
    producer = client(port)
    for item in range(consumers * each):
        producer.queue_push("work", str(item))
    [thread.join() for thread in threads]
    assert sorted(sum(taken, [])) == list(range(consumers * each)), "an item was taken twice or never"
    assert all(mine == sorted(mine) for mine in taken), "items overtook each other"


def barriers(port, world=16, rounds=5):
    """torch's barriers, and its gathering of values, on top of our store."""
    failed = []

    def rank(number):
        try:
            store = dist.PrefixStore("barriers", client(port))
            for turn in range(rounds):
                values = elastic_store.synchronize(store, f"{number}-{turn}".encode(), number, world, f"sync-{turn}/", 20)
                assert values == [f"{other}-{turn}".encode() for other in range(world)], values
                elastic_store.barrier(store, world, f"barrier-{turn}", 20, number)
                distributed_c10d._store_based_barrier(number, store, f"group-{turn}", world, SECONDS)
        except Exception as error:
            failed.append(f"rank {number}: {error!r}")

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed, failed


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
        queue_in_order(port)
        barriers(port)
        mp.spawn(rank_of_gloo, args=(3, port), nprocs=3)
        assert client(port).get("a") == b"2", "the store lives on after its clients have gone"
        print(f"{len(ours)} answers equal PyTorch's; {32 * 50} tickets; gloo of 3 met in our store")
    finally:
        server.stdin.close()
        server.wait(timeout=10)


if __name__ == "__main__":
    sys.exit(main())
