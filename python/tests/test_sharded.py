"""Sharded models (FSDP2, HSDP): a rank is killed at a chosen point, and at the end the shards are those of an undisturbed run, to the bit."""

import functools
import json
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import unittest
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from enn.elastic import ElasticError, State, agreement, mirror_memory
from enn.elastic.agreement import Claim, Held, Transfer, decide
from enn.elastic.interruption import Interruption
from enn.elastic.mirror_memory import MirrorFile
from enn.elastic.neighbour import targets
from enn.elastic.verdict import Verdict
from supervisor import Supervisor
from test_recovery import printed

HERE = Path(__file__).resolve().parent
SHARDED = str(HERE / "train_sharded.py")
SMALL = str(HERE / "script_small.py")
REPEATED = re.compile(r"enn: training goes on after step (\d+), from (.+); (\d+) steps? (?:is|are) repeated")


@functools.cache
def undisturbed(world: int, *arguments: str) -> list[str]:
    with Supervisor(SHARDED, world, arguments=arguments) as supervisor:
        supervisor.finish()
        return supervisor.ends()


class Sharded(unittest.TestCase):
    def kill_at(self, world: int, hold: str, *arguments: str, also: tuple = ()) -> tuple[list[str], list[tuple]]:
        """Kills a rank where it holds, and the ranks `also` with it. Returns how all ended, and what was said of the recovery."""
        rank = int(hold.split(":")[0])
        with Supervisor(SHARDED, world, spares=1, arguments=arguments, environment={"ENN_TEST_HOLD": hold}) as supervisor:
            supervisor.run_until(lambda: (supervisor.root / "held").exists())
            for other in also:
                supervisor.kill(other)
            supervisor.kill(rank)
            supervisor.finish()
            self.assertEqual(list((supervisor.root / "seats").glob("mirror-*")), [])
            said = [(int(after), origin, int(number)) for after, origin, number in REPEATED.findall(supervisor.outputs())]
            return supervisor.ends(), said

    def test_a_rank_killed_at_any_point_of_a_step(self):
        expected = undisturbed(2)
        self.assertEqual(len(expected), 2)
        for hold, after in (("1:13:forward", 10), ("0:14:backward", 10), ("1:15:applied", 15)):
            with self.subTest(hold=hold):
                ended, said = self.kill_at(2, hold)
                self.assertEqual(ended, expected)
                self.assertEqual([(step, origin) for step, origin, _ in said], [(after, "mirrored memory")])
                self.assertLessEqual(said[0][2], 5)

    def test_a_mirror_that_was_not_finished_does_not_count(self):
        ended, said = self.kill_at(2, "1:15:mirror")
        self.assertEqual(ended, undisturbed(2))
        # The other rank has finished its mirror of step 15.
        self.assertEqual(said, [(10, "mirrored memory", 5)])

    def test_two_of_four_ranks_killed_at_once(self):
        ended, said = self.kill_at(4, "2:17:backward", also=(1,))
        self.assertEqual(ended, undisturbed(4))
        self.assertEqual([one[:2] for one in said], [(15, "mirrored memory")])

    def test_tensor_parallel_layers(self):
        ended, said = self.kill_at(2, "1:13:backward", "tensor=1")
        self.assertEqual(ended, undisturbed(2, "tensor=1"))
        self.assertEqual([one[:2] for one in said], [(10, "mirrored memory")])

    def test_before_the_first_mirror_all_begin_anew(self):
        ended, said = self.kill_at(2, "1:3:forward")
        self.assertEqual(ended, undisturbed(2))
        self.assertEqual(said, [(0, "the beginning of the script", 3)])

    def test_a_replica_brings_the_lost_shard_and_nothing_is_repeated(self):
        arguments = ("replicas=2", "mirror=0")
        expected = undisturbed(4, *arguments)
        for hold, after in (("1:13:backward", 13), ("2:13:met", 14)):
            with self.subTest(hold=hold):
                ended, said = self.kill_at(4, hold, *arguments)
                self.assertEqual(ended, expected)
                self.assertEqual(said, [(after, "the memory of the ranks that live", 0)])

    def test_a_node_is_lost_with_its_mirrors(self):
        with Supervisor(SHARDED, 2, environment={"ENN_TEST_HOLD": "1:19:forward"}, nodes=2) as supervisor:
            supervisor.run_until(lambda: (supervisor.root / "held").exists())
            for path in supervisor.seats_of(1).iterdir():
                path.unlink()
            supervisor.kill(1)
            supervisor.finish()
            ended = supervisor.ends()
            said = REPEATED.findall(supervisor.outputs())
            left = [path for node in (0, 1) for path in supervisor.seats_of(node).glob("mirror-*")]
        self.assertEqual((said, left), ([("15", "mirrored memory", "4")], []))
        self.assertEqual(ended, undisturbed(2))

    def test_all_killed_at_once_go_on_from_mirrors_or_from_a_checkpoint(self):
        expected = undisturbed(2)
        for mirror, after in ((5, 15), (0, 12)):
            with self.subTest(mirror=mirror), tempfile.TemporaryDirectory() as folder:
                arguments = [f"mirror={mirror}", "checkpoint=6"]
                environment = {"ENN_TEST_HOLD": "1:17:forward", "ENN_TEST_CHECKPOINTS": folder}
                with Supervisor(SHARDED, 2, arguments=arguments, environment=environment) as supervisor:
                    supervisor.run_until(lambda: (supervisor.root / "held").exists() and (Path(folder) / "step-12-0/.metadata").exists())
                    # One that was torn is newer than the whole ones.
                    (Path(folder) / "step-16-0").mkdir()
                    for rank in (0, 1):
                        os.kill(supervisor.seated(rank).popen.pid, signal.SIGKILL)
                    supervisor.finish()
                    self.assertEqual(supervisor.ends(), expected)
                    said = REPEATED.findall(supervisor.outputs())
                    self.assertEqual(said[0][0], str(after))
                    self.assertIn("mirrored memory" if mirror else "step-12-0", said[0][1])
                    whole = sorted(path.parent.name for path in Path(folder).glob("*/.metadata"))
                    self.assertEqual([name.rsplit("-", 1)[0] for name in whole], ["step-24", "step-30"])

    def test_ranks_that_have_the_whole_state_go_on_from_a_checkpoint_too(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = {"ENN_TEST_CHECKPOINTS": folder}
            with Supervisor(SMALL, 2, arguments=["plain"]) as supervisor:
                supervisor.finish()
                expected = supervisor.ends()
            with Supervisor(SMALL, 2, arguments=["dies"], environment=environment) as supervisor:
                supervisor.finish()
                self.assertEqual(supervisor.ends(), expected)
                self.assertRegex(supervisor.outputs(), r"goes on after step 20, from the checkpoint step-20-0; 5 steps are repeated")


    def test_the_same_file_runs_under_torchrun_and_starts_from_its_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = {"ENN_TEST_CHECKPOINTS": folder}
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", SHARDED, "mirror=5"]
            expected = undisturbed(2)
            self.assertEqual(printed([*command, "checkpoint=10"], environment), expected)
            # Of the three whole ones the newest two are kept.
            shutil.rmtree(Path(folder) / "step-30-0")
            self.assertEqual(printed([*command, "checkpoint=1000"], environment), expected)


class Decisions(unittest.TestCase):
    def claim(self, signature: str, *held: Held, entry: int | None = 0) -> Claim:
        return Claim(signature, list(held), entry, 23)

    def test_the_newest_step_of_which_all_parts_are_held(self):
        first = [Held("a", 20, True), Held("a", 10, True), Held("a", 23, False)]
        second = [Held("b", 10, True)]
        decision = decide([self.claim("a", *first), self.claim("b", *second)], (7, "folder"))
        self.assertEqual((decision.kind, decision.position, decision.is_mirror, decision.repeated), (agreement.MEMORY, 10, True, 13))
        self.assertEqual((decision.transfers, decision.is_replicated), ([], False))

    def test_a_rank_that_lacks_its_part_gets_it(self):
        kept = Held("a", 23, False)
        decision = decide([self.claim("a"), self.claim("a", kept), self.claim("b", Held("b", 23, True)), self.claim("b")], None)
        self.assertEqual(decision.transfers, [Transfer(1, 0, "a"), Transfer(2, 3, "b")])
        self.assertTrue(decision.is_replicated)

    def test_a_newer_checkpoint_is_preferred_to_an_older_mirror(self):
        held = Held("a", 10, True)
        self.assertEqual(decide([self.claim("a", held)], (20, "folder")).kind, agreement.CHECKPOINT)
        self.assertEqual(decide([self.claim("a", held)], (10, "folder")).kind, agreement.MEMORY)

    def test_nothing_to_go_on_with(self):
        with self.assertRaisesRegex(ElasticError, "restart the script"):
            decide([self.claim("a"), self.claim("a", entry=None)], None)
        self.assertEqual(decide([self.claim("a")], None).kind, agreement.ANEW)


    def test_what_comes_over_the_store_is_not_unpickled(self):
        store = dist.HashStore()
        claim = self.claim("a", Held("a", 23, False))
        store.set("claim/1", pickle.dumps(claim))
        with self.assertRaisesRegex(ElasticError, "is not understood"):
            agreement.agree(store, 0, 2, claim, lambda: None)
        store.set("claim/1", json.dumps(asdict(claim)))
        decision = agreement.agree(store, 0, 2, claim, lambda: None)
        self.assertEqual((decision.kind, decision.position, decision.transfers), (agreement.MEMORY, 23, []))

    def test_second_copies_are_on_other_nodes(self):
        self.assertEqual(targets(["a", "a", "b", "b"]), [2, 3, 0, 1])
        self.assertEqual(targets(["a", "b", "a", "b", "c"]), [1, 4, 3, 0, 2])
        self.assertEqual(targets(["a", "a", "b"]), [])
        self.assertEqual(targets(["a", "a"]), [])


class Verdicts(unittest.TestCase):
    def ask(self, *met: bool) -> list[bool]:
        """Returns what ranks are told that ask one after the other, each having met all others or not."""
        store = dist.HashStore()
        interruption = Interruption()
        interruption.end_round(0, "over")
        verdicts = [Verdict(store, interruption, torch.device("cpu"), 7) for _ in met]
        answers = []
        for verdict, has_met in zip(verdicts, met):
            with mock.patch.object(verdict, "_meet", return_value=has_met):
                answers.append(verdict.counts(8, 0))
        return answers

    def test_the_first_answer_holds_for_all(self):
        self.assertEqual(self.ask(True, True), [True, True])
        self.assertEqual(self.ask(True, False), [True, True])
        self.assertEqual(self.ask(False, True), [False, False])


class Memory(unittest.TestCase):
    def test_a_copy_counts_when_it_is_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            path = mirror_memory.path_of(Path(folder), 3, 1)
            file = MirrorFile(path, 64, on_device=False)
            self.assertEqual(mirror_memory.records(Path(folder)), [])
            file.begin().fill_(5)
            file.end(3, "s" * 32, 40, b"rest")
            (record,) = mirror_memory.records(Path(folder))
            self.assertEqual((record.rank, record.position, record.signature), (3, 40, "s" * 32))
            flat, rest = mirror_memory.read(record)
            self.assertEqual((flat.tolist(), rest), ([5] * 64, b"rest"))
            file.begin()
            self.assertEqual(mirror_memory.records(Path(folder)), [])
            file.close()

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(ElasticError, "expected 2 or more"):
            State().mirror(every=1)
        with self.assertRaisesRegex(ElasticError, "1 or more"):
            State().checkpoint(every=0, dir="x")


if __name__ == "__main__":
    unittest.main()
