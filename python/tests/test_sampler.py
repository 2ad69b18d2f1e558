"""The order of the samples depends on seed and epoch alone."""

import os
import unittest
from unittest import mock

import torch

from enn.elastic import ElasticError, Sampler


def shares(world: int, position: int = 0) -> list[list[int]]:
    """Returns the global batches that are left, as `world` ranks share them."""
    batches = []
    for rank in range(world):
        with mock.patch.dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world)):
            sampler = Sampler(50, 12, seed=7)
            sampler.load_state_dict(sampler.state_dict() | {"position": position})
            batches.append([list(batch) for batch in sampler])
    return [sum(parts, []) for parts in zip(*batches)]


class Order(unittest.TestCase):
    def test_it_does_not_depend_on_the_world(self):
        alone = shares(1)
        self.assertEqual(len(alone), 4)
        self.assertEqual(len({index for batch in alone for index in batch}), 48)
        for world in (2, 3, 4, 6, 12):
            self.assertEqual(shares(world), alone)
        self.assertEqual(shares(2, position=3), alone[3:])

    def test_epochs_differ_and_can_be_resumed(self):
        sampler = Sampler(32, 8)
        loader = torch.utils.data.DataLoader(range(32), batch_sampler=sampler)
        first = [batch.tolist() for batch in sampler.batches(loader)]
        self.assertEqual((sampler.epoch, len(first)), (1, 4))
        half = sampler.batches(loader)
        begun = [next(half).tolist(), next(half).tolist()]
        other = Sampler(32, 8)
        other.load_state_dict(sampler.state_dict())
        rest = [batch.tolist() for batch in other.batches(torch.utils.data.DataLoader(range(32), batch_sampler=other))]
        self.assertEqual(sorted(sum(begun + rest, [])), list(range(32)))
        self.assertNotEqual(first, begun + rest)

    def test_what_a_worker_process_draws_depends_on_the_batch_alone(self):
        class Draws(torch.utils.data.Dataset):
            def __len__(self):
                return 16

            def __getitem__(self, index):
                return torch.rand(())

        found = []
        for workers in (1, 2):
            sampler = Sampler(16, 4)
            loader = torch.utils.data.DataLoader(Draws(), batch_sampler=sampler, num_workers=workers)
            found.append([batch.tolist() for batch in sampler.batches(loader)])
        self.assertEqual(*found)

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(ElasticError, "global_batch is 9, expected a number from 1 to the number of samples, 8"):
            Sampler(8, 9)
        with mock.patch.dict(os.environ, WORLD_SIZE="3"), self.assertRaisesRegex(ElasticError, "by 3 ranks, but by 1, 2, 4, 8"):
            iter(Sampler(8, 8))
        with self.assertRaisesRegex(ElasticError, "this loader has another sampler"):
            next(Sampler(8, 8).batches(torch.utils.data.DataLoader(range(8))))
        with self.assertRaisesRegex(ElasticError, "with seed 1, and this one has 0"):
            Sampler(8, 8).load_state_dict(Sampler(8, 8, seed=1).state_dict())


if __name__ == "__main__":
    unittest.main()
