"""The order of the samples depends on seed and epoch alone."""

import os
import unittest
from unittest import mock

import torch

from enn.elastic import ElasticError, Sampler, State


def shares(world: int, position: int = 0, micro_batch: int | None = None) -> list[list[int]]:
    """Returns the global batches that are left, as `world` ranks share them."""
    batches = []
    for rank in range(world):
        with mock.patch.dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world)):
            sampler = Sampler(50, 12, seed=7, micro_batch=micro_batch)
            sampler.load_state_dict(sampler.state_dict() | {"position": position})
            micro = iter(sampler)
            batches.append([sum((next(micro) for _ in range(sampler.micro_batches)), []) for _ in range(position, len(sampler))])
    return [sum(parts, []) for parts in zip(*batches)]


class Order(unittest.TestCase):
    def test_it_does_not_depend_on_the_world(self):
        alone = shares(1)
        self.assertEqual(len(alone), 4)
        self.assertEqual(len({index for batch in alone for index in batch}), 48)
        for world in (2, 3, 4, 6, 12):
            self.assertEqual(shares(world), alone)
        self.assertEqual(shares(2, position=3), alone[3:])

    def test_micro_batches_are_parts_of_the_same_batches(self):
        for world in (1, 2, 3, 6):
            self.assertEqual(shares(world, micro_batch=2), shares(1))

    def test_accumulated_gradients_do_not_depend_on_the_size_of_micro_batches(self):
        rows = torch.randn(32, 4)
        gradients = []
        for size in (None, 4, 2):
            sampler = Sampler(32, 8, micro_batch=size)
            loader = torch.utils.data.DataLoader(rows, batch_sampler=sampler)
            weight = torch.ones(4, requires_grad=True)
            complete = 0
            for batch in sampler.batches(loader):
                ((batch @ weight).square().mean() / sampler.micro_batches).backward()
                if sampler.is_step_complete:
                    complete += 1
                    gradients.append(weight.grad)
                    weight.grad = None
            self.assertEqual((complete, sampler.epoch), (4, 1))
        for one, two, three in zip(gradients[:4], gradients[4:8], gradients[8:]):
            torch.testing.assert_close(one, two)
            torch.testing.assert_close(one, three)

    def test_gradients_are_exchanged_in_the_last_micro_batch_only(self):
        class Module:
            def __init__(self):
                self.calls = []

            def no_sync(self):
                self.calls.append("no_sync")
                return mock.MagicMock()

        class Sharded:
            def __init__(self):
                self.calls = []

            def set_requires_gradient_sync(self, wanted):
                self.calls.append(wanted)

        wrapped = Module()
        sharded = Sharded()
        sampler = Sampler(8, 8, micro_batch=2)
        for _ in sampler.batches(torch.utils.data.DataLoader(range(8), batch_sampler=sampler)):
            with sampler.accumulate(wrapped), sampler.accumulate(sharded), sampler.accumulate(torch.nn.Identity()):
                pass
        self.assertEqual(wrapped.calls, ["no_sync"] * 3)
        self.assertEqual(sharded.calls, [False, False, False, True])

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

    def test_a_state_knows_the_parts_of_all_its_samplers(self):
        self.assertEqual(State(train=Sampler(64, 16, micro_batch=2), test=Sampler(64, 12))._parts.batch_parts, 4)
        self.assertEqual(State(best=0.0)._parts.batch_parts, 0)

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(ElasticError, "global_batch is 9, expected a number from 1 to the number of samples, 8"):
            Sampler(8, 9)
        with mock.patch.dict(os.environ, WORLD_SIZE="3"), self.assertRaisesRegex(ElasticError, "by 3 ranks, but by 1, 2, 4, 8"):
            iter(Sampler(8, 8))
        refused = mock.patch.dict(os.environ, WORLD_SIZE="3")
        with refused, self.assertRaisesRegex(ElasticError, "8 in micro-batches of 2 cannot be shared equally by 3 ranks, but by 1, 2, 4$"):
            iter(Sampler(8, 8, micro_batch=2))
        with self.assertRaisesRegex(ElasticError, "micro_batch is 3, expected a number that divides global_batch, 8"):
            Sampler(8, 8, micro_batch=3)
        with self.assertRaisesRegex(ElasticError, "this loader has another sampler"):
            next(Sampler(8, 8).batches(torch.utils.data.DataLoader(range(8))))
        with self.assertRaisesRegex(ElasticError, "with seed 1, and this one has 0"):
            Sampler(8, 8).load_state_dict(Sampler(8, 8, seed=1).state_dict())


if __name__ == "__main__":
    unittest.main()
