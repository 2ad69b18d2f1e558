"""Random states are captured to the bit, also where most steps draw nothing."""

import random
import tempfile
import unittest
from pathlib import Path

import numpy
import torch

from enn.elastic import random_streams, seat_memory
from enn.elastic.seat_memory import CONTRIBUTED, DONE, Packer, SeatMemory

DRAWS = {
    "python": random.random,
    "python normal": lambda: random.gauss(0, 1),
    "numpy": lambda: float(numpy.random.rand()),
    "numpy normal": lambda: float(numpy.random.randn()),
    "torch": lambda: torch.rand(()).item(),
    "torch normal": lambda: torch.randn(1).item(),
}


class Streams(unittest.TestCase):
    def test_each_draw_is_seen_and_undone(self):
        random_streams.seed_all("test")
        for name, draw in DRAWS.items():
            for _ in range(1300):
                states = random_streams.capture()
                drawn = draw()
                self.assertNotEqual(random_streams.capture(), states, name)
                random_streams.restore(states)
                self.assertEqual(random_streams.capture(), states, name)
                self.assertEqual(draw(), drawn, name)

    def test_what_is_the_same_is_the_same_object(self):
        random_streams.seed_all("test")
        first = random_streams.capture()
        second = random_streams.capture()
        self.assertTrue(all(first[name] is second[name] for name in first))
        torch.rand(1)
        third = random_streams.capture()
        self.assertEqual([name for name in first if first[name] is not third[name]], ["torch"])


class Records(unittest.TestCase):
    def test_what_is_written_is_read(self):
        packer = Packer()
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            memory = SeatMemory(directory, 3, 2, 16, on_device=False)
            streams = {"python": b"p" * 9, "torch": b"t"}
            for step in range(5):
                if step == 3:
                    streams = streams | {"torch": b"other" * 20000}
                kind = DONE if step % 2 else CONTRIBUTED
                own = streams | {"cuda": bytes([step])}
                memory.buffers(step, kind).fill_(step)
                memory.write(step, kind, *packer.pack(own, b"values" if step else None), has_buffers=step != 4)
                buffers = bytes([step]) * 16 if step != 4 else None
                self.assertEqual(seat_memory.read(directory, 3, 2, step, kind), (buffers, own, b"values" if step else None))
            memory.complete(4, CONTRIBUTED)
            self.assertEqual(seat_memory.read(directory, 3, 2, 4, CONTRIBUTED)[0], bytes([4]) * 16)
            self.assertIsNone(seat_memory.read(directory, 3, 2, 2, CONTRIBUTED))
            memory.buffers(4, CONTRIBUTED)
            self.assertIsNone(seat_memory.read(directory, 3, 2, 4, CONTRIBUTED))
            memory.close()


if __name__ == "__main__":
    unittest.main()
