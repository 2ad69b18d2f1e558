"""Where Python runs ahead of the device, steps behind a failure leave no trace. The CPU plays the device."""

import contextlib
import io
import random
import unittest
from pathlib import Path
from unittest import mock

import torch

import enn.elastic.late_look
import enn.elastic.state
from enn.elastic import ElasticError, Interrupted, State
from enn.elastic.interruption import Interruption
from enn.elastic.steps import Steps
from supervisor import Supervisor

CUDA = str(Path(__file__).resolve().parent / "train_cuda.py")


class Control:
    is_stopping = False
    step = 0
    position = 0


class Groups:
    def is_broken(self):
        return False


class Training:
    """A model in training, with steps that may be skipped."""

    def __init__(self, scaler=None, run_ahead=True, **parts):
        torch.manual_seed(5)
        random.seed(5)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.scaler = scaler
        parts |= {"scaler": scaler} if scaler else {}
        with mock.patch.object(enn.elastic.state, "_runs_ahead", lambda device: True):
            self.state = State(run_ahead=run_ahead, model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, losses=[], **parts)
        self.interruption = Interruption()
        self.steps = Steps(self.state, Control(), Groups(), self.interruption, None)
        self.state.__dict__["_steps"] = self.steps
        self.begin(0)
        self.steps.take_snapshot(0, True)
        self.steps.is_active = True

    def begin(self, round_number: int) -> None:
        self.interruption.begin(round_number)
        self.steps.enter(0)

    def step(self, number: int) -> None:
        for _ in range(number):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(6, 4) + random.random()).square().mean()
            if self.scaler is None:
                loss.backward()
                self.optimizer.step()
            else:
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.scheduler.step()
            self.state.losses.append(loss.item())
            self.state.step += 1

    def fail(self) -> bool:
        """The round ends, and the next one begins in the same process; returns whether its state is whole."""
        self.interruption.end_round(0, "test")
        self.steps.resolve()
        is_whole = self.steps.leave()
        self.begin(1)
        if is_whole:
            self.steps.restore_own()
            self.steps.settle()
        self.steps.is_active = True
        return is_whole

    def bits(self) -> list:
        moments = [value.tolist() for state in self.optimizer.state.values() for value in state.values()]
        tensors = [tensor.tolist() for tensor in self.model.state_dict().values()]
        return [self.state.step, self.steps.position, self.state.losses, tensors, moments, self.scheduler.state_dict()]


class Skipped(unittest.TestCase):
    def check(self, before: int, behind: int, **parts) -> None:
        """Steps behind the flag are done by Python and skipped by the device; then training goes on."""
        undisturbed = Training(**{name: make() for name, make in parts.items()})
        undisturbed.step(8)
        disturbed = Training(**{name: make() for name, make in parts.items()})
        disturbed.step(before)
        disturbed.steps.discard_from_now()
        disturbed.step(behind)
        self.assertEqual(disturbed.state.step, before + behind)
        self.assertTrue(disturbed.fail())
        self.assertEqual(disturbed.state.step, before)
        disturbed.step(8 - before)
        disturbed.steps.settle_all()
        self.assertEqual(disturbed.bits(), undisturbed.bits())
        self.assertFalse(hasattr(disturbed.optimizer, "found_inf"))

    def test_steps_behind_the_flag_leave_no_trace(self):
        for before in (1, 2, 5):
            for behind in (0, 1, 2):
                with self.subTest(before=before, behind=behind):
                    self.check(before, behind)

    def test_the_first_step_of_all_leaves_no_trace(self):
        self.check(0, 2)

    def test_a_scaler_is_put_back(self):
        self.check(3, 2, scaler=lambda: torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2))

    def test_a_step_that_python_has_not_finished_is_undone(self):
        undisturbed = Training()
        undisturbed.step(5)
        disturbed = Training()
        disturbed.step(3)
        disturbed.steps.discard_from_now()
        disturbed.model(torch.randn(6, 4)).square().mean().backward()
        disturbed.optimizer.step()
        self.assertTrue(disturbed.fail())
        disturbed.step(2)
        self.assertEqual(disturbed.bits(), undisturbed.bits())

    def test_a_step_that_was_applied_and_not_finished_is_not_whole(self):
        training = Training()
        training.step(3)
        training.model(torch.randn(6, 4)).square().mean().backward()
        training.optimizer.step()
        self.assertFalse(training.fail())

    def test_python_is_at_most_two_steps_ahead(self):
        training = Training()
        training.step(3)
        training.steps.discard_from_now()
        training.step(2)
        with self.assertRaises(Interrupted):
            training.step(1)
        self.assertEqual(training.steps._control.step, 3)


class Waiting(unittest.TestCase):
    def test_a_skipped_step_is_seen_at_once(self):
        undisturbed = Training(run_ahead=False)
        undisturbed.step(8)
        for before in (0, 1, 4):
            training = Training(run_ahead=False)
            training.step(before)
            self.assertEqual(training.steps._control.step, before)
            training.steps.discard_from_now()
            with self.assertRaises(Interrupted):
                training.step(1)
            self.assertTrue(training.fail())
            training.step(8 - before)
            self.assertEqual(training.bits(), undisturbed.bits())

    def test_the_bits_are_those_of_steps_that_run_ahead(self):
        waiting = Training(run_ahead=False, scaler=torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2))
        waiting.step(8)
        ahead = Training(scaler=torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2))
        ahead.step(8)
        ahead.steps.settle_all()
        self.assertEqual(waiting.bits(), ahead.bits())


class LateLook(unittest.TestCase):
    def look(self, optimizer, parameters, tensor_states: int) -> None:
        """Nothing is changed when the look comes, and it comes once."""
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
            watched = [*parameters, *(parameter.grad for parameter in parameters), *states]
            before = [tensor.clone() for tensor in watched]
            seen = []
            late = enn.elastic.late_look.LateLook()
            function = torch._foreach_add_, torch._fused_sgd_
            late.arm(enn.elastic.late_look.first_change(optimizer), lambda: seen.append([tensor.clone() for tensor in watched]))
            optimizer.step()
            self.assertEqual(len(seen), 1)
            self.assertTrue(all(torch.equal(*pair) for pair in zip(before, seen[0])))
            self.assertFalse(late.disarm())
            self.assertEqual((torch._foreach_add_, torch._fused_sgd_), function)
        self.assertEqual(len(states), tensor_states)

    def test_nothing_is_changed_before_it(self):
        for make, states in (
            (lambda of: torch.optim.AdamW(of, fused=True), 6),
            (lambda of: torch.optim.AdamW(of, foreach=True), 6),
            (lambda of: torch.optim.Adam(of, foreach=True, maximize=True, weight_decay=0.1, amsgrad=True), 8),
            (lambda of: torch.optim.SGD(of, fused=True, momentum=0.9, weight_decay=0.1), 2),
        ):
            parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
            self.look(make(parameters), parameters, states)

    def test_other_optimizers_look_before_their_step(self):
        class Own(torch.optim.AdamW):
            pass

        parameters = [torch.nn.Parameter(torch.ones(3))]
        for optimizer in (torch.optim.SGD(parameters, foreach=True), torch.optim.AdamW(parameters, foreach=False), Own(parameters, fused=True)):
            self.assertIsNone(enn.elastic.late_look.first_change(optimizer))


class Limits(unittest.TestCase):
    def test_an_optimizer_that_is_not_fused_is_refused(self):
        model = torch.nn.Linear(2, 2)
        with self.assertRaisesRegex(ElasticError, "state.optimizer is SGD without fused=True, which cannot skip a step on the device"):
            State(run_ahead=True, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    def test_averaged_weights_make_each_step_wait(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            training = Training(ema=torch.nn.Linear(2, 2))
        self.assertIn("each step waits for the device: state.ema has parameters, and no optimizer trains them", said.getvalue())
        training.step(3)
        self.assertEqual(training.steps._control.step, 3)

    def test_edits_behind_the_optimizer_make_each_step_wait(self):
        training = Training()
        training.step(1)
        training.model(torch.randn(6, 4)).square().mean().backward()
        training.optimizer.step()
        with torch.no_grad():
            training.model[0].weight.mul_(0.5)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            training.state.step += 1
        self.assertIn("parameters are changed between an optimizer's step and", said.getvalue())
        training.step(2)
        self.assertEqual(training.steps._control.step, 4)


class Kills(unittest.TestCase):
    def test_the_bits_are_those_of_an_undisturbed_run(self):
        arguments = ["width=16", "depth=2", "steps=150"]
        with Supervisor(CUDA, 2, arguments=arguments) as supervisor:
            supervisor.finish()
            expected = supervisor.ends()
        for mode in ("ahead=2", "ahead=3"):
            with self.subTest(mode), Supervisor(CUDA, 2, spares=2, arguments=[*arguments, mode]) as supervisor:
                supervisor.run_until(supervisor.all_attached)
                for number, rank in enumerate((1, 0)):
                    supervisor.run_until(lambda: supervisor.all_ready(number) and supervisor.seated(rank).step >= 10 + 40 * number)
                    supervisor.kill(rank)
                    supervisor.run_until(lambda: supervisor.all_ready(number + 1))
                supervisor.finish()
                self.assertEqual(supervisor.ends(), expected)


if __name__ == "__main__":
    unittest.main()
