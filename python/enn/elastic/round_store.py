"""The key-value store in which the ranks of a round meet, with waits that end when the round does."""

import time

import torch.distributed as dist

# Shortest and longest time between two looks at the store. The time grows with the time waited, so that few wait long behind many.
LOOK_SECONDS_MIN = 0.0005
LOOK_SECONDS_MAX = 0.02


class RoundStore(dist.Store):
    """A store over a part of the launcher's store.

    torch's own client waits in C, where nothing reaches it. This one asks again and again, and looks in between whether the round is over
    (`Interrupted`). Waits have no other limit: the supervisor ends a round in which somebody does not come.
    """

    def __init__(self, client: dist.Store, interruption):
        super().__init__()
        self._client = client
        self._interruption = interruption

    def wait(self, keys, timeout=None):
        """Waits until all keys are there."""
        begin = time.monotonic()
        while not self._client.check(keys):
            self._interruption.raise_if_over()
            waited = time.monotonic() - begin
            time.sleep(min(max(waited / 16, LOOK_SECONDS_MIN), LOOK_SECONDS_MAX))

    def get(self, key):
        """Waits for the key, and returns its value."""
        self.wait([key])
        return self._client.get(key)

    def set(self, key, value):
        self._client.set(key, value)

    def check(self, keys):
        return self._client.check(keys)

    def add(self, key, amount):
        return self._client.add(key, amount)

    def append(self, key, value):
        self._client.append(key, value)

    def compare_set(self, key, expected, desired):
        return self._client.compare_set(key, expected, desired)

    def delete_key(self, key):
        return self._client.delete_key(key)

    def num_keys(self):
        return self._client.num_keys()

    def multi_get(self, keys):
        return [self.get(key) for key in keys]

    def multi_set(self, keys, values):
        for key, value in zip(keys, values):
            self.set(key, value)

    def has_extended_api(self):
        return False

    def clone(self):
        return self
