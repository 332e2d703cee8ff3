"""The sampling half of a run, with the test as its learner.

Actors and policy workers are real processes, or in serial mode objects that take turns in the process of the test.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any

import numpy as np
import numpy.typing as npt

from sfactory.actor.actor_process import make_actor, run_actor
from sfactory.actor.setup import ActorSetup, make_splits
from sfactory.config.schema import Config
from sfactory.inference.policy_worker import PolicySetup, PolicyWorker, run_policy_worker
from sfactory.layout import GATEWAY, Layout
from sfactory.learner.batcher import Batcher, Inbox
from sfactory.learner.staging import Staging
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.process.spawn import ChildSpec, Spawner, child_main
from sfactory.process.stack_dump import StackDump
from sfactory.remote.gateway import run_gateway
from sfactory.shared.control import Stop
from sfactory.shared.objects import SharedObjects
from sfactory.shared.slots import SlotState
from sfactory.shared.trajectories import ALL_ROWS, RowsOf, Slot
from sfactory.spec import EnvSpec
from tests.support.processes import eventually

Array = npt.NDArray[Any]
TURNS = 100_000  # bound on the turns of every wait in serial mode
END_S = 60.0  # bound on every wait for a process


class Sampling:
    """What sampling with ``config`` needs. ``shared``: what actors, policy workers and test share.

    model, flat: of policy 0, and, where agents do not differ, of all.
    """

    def __init__(self, config: Config, spec: EnvSpec, seed: int = 1, kinds: tuple[str, ...] = ()) -> None:
        """``kinds``: by policy, the kind of agents that it plays."""
        inference = config.sampling.inference
        assert inference != "auto"
        self.config, self._seed = config, seed
        self.models = [ActorCritic(spec.part(kind), config.model) for kind in kinds or ("",)]
        self.model, self.flats = self.models[0], [FlatState(model) for model in self.models]
        self.flat = self.flats[0]
        planned = Layout.plan(
            config.sampling, config.learner, inference, self.model.state_size, 0, config.population, spec.num_agents
        )
        self.layout = dataclasses.replace(planned, kinds=kinds)
        self.shared = SharedObjects(spec, self.layout, max(flat.block.numel() for flat in self.flats))
        self.assembler = self.batcher(0)

    def publish(self, version: int) -> None:
        """Publish the present weights of all policies."""
        for policy, weights in enumerate(self.shared.weights):
            weights.publish(self.flats[policy if len(self.flats) > 1 else 0].to_host(), version)

    def batcher(self, policy: int) -> Batcher:
        """What fills datasets of that policy."""
        shared, row = self.shared, self.shared.status.row(self.layout.learner_names[policy])
        return Batcher(Inbox(policy, shared, row), self.layout.slots_until_trained)

    def fill(self, staging: Staging) -> None:
        """Fill ``staging`` as a learner does; fails if nothing comes."""
        raise NotImplementedError

    def wait_until_held_back(self) -> None:
        """Wait until every slot is READY: the actors cannot continue."""
        raise NotImplementedError

    @property
    def held_back(self) -> bool:
        """Whether every slot is READY."""
        return all(self.shared.table.state(slot) is SlotState.READY for slot in range(self.layout.num_slots))


class SerialSampler(Sampling):
    """Context in which the workers take turns, as in serial mode."""

    def __enter__(self) -> SerialSampler:
        shared, config, seed, layout = self.shared, self.config, self._seed, self.layout
        self.publish(0)
        self._workers: list[Any] = []
        for number, name in enumerate(layout.policy_worker_names):
            setup = PolicySetup(config, shared, number, seed, 0, "cpu")
            self._workers.append(PolicyWorker(setup, setup.make_policy(), shared.status.row(name)))
        self._envs = contextlib.ExitStack()
        for actor, name in enumerate(layout.actor_names):
            actor_setup, row = ActorSetup(config, shared, actor, seed, 0), shared.status.row(name)
            self._workers.append(make_actor(actor_setup, make_splits(actor_setup, row, self._envs), row))
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._envs.close()

    def take_turns(self) -> None:
        """One turn of every worker."""
        for worker in self._workers:
            worker.turn(0)

    def fill(self, staging: Staging) -> None:
        staging.clear()
        self.turns_until(lambda: self.assembler.advance(staging, 0), "no dataset came")

    def wait_until_held_back(self) -> None:
        self.turns_until(lambda: self.held_back, "not held back")

    def turns_until(self, predicate: Callable[[], bool], problem: str) -> None:
        """Let the workers take turns until ``predicate()``; fails with ``problem`` if it never comes true."""
        for _ in range(TURNS):
            self.take_turns()
            if predicate():
                return
        raise AssertionError(f"{problem} within {TURNS} turns")


class Sampler(Sampling):
    """Context in which the actors and policy workers of ``config`` sample, as processes."""

    def __init__(self, config: Config, spec: EnvSpec, seed: int = 1) -> None:
        super().__init__(config, spec, seed)
        self._processes: dict[str, ForkServerProcess] = {}

    def __enter__(self) -> Sampler:
        shared, config, seed, spawner = self.shared, self.config, self._seed, Spawner()
        spawner.open()
        targets: dict[str, tuple[Any, ...]] = {}
        for worker, name in enumerate(self.layout.policy_worker_names):
            targets[name] = run_policy_worker, PolicySetup(config, shared, worker, seed, 0, "cpu")
        for actor, name in enumerate(self.layout.actor_names):
            setup = ActorSetup(config, shared, actor, seed, 0)
            targets[name] = (run_gateway, setup) if name == GATEWAY else (run_actor, setup, None)
        for name, target in targets.items():
            spec = ChildSpec(name, shared.status, shared.failures, 0, StackDump())
            self._processes[name] = spawner.start(name, child_main, spec, *target)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.shared.control.order_stop(Stop.NOW)
        codes = {}
        for name, process in self._processes.items():
            process.join(END_S)
            process.kill()
            process.join(END_S)
            codes[name] = process.exitcode
        if error is None:
            texts = {name: self.shared.failures.read(name) for name in codes}
            assert set(codes.values()) == {0}, f"exit codes {codes}; {texts}"

    def fill(self, staging: Staging) -> None:
        waits = 0

        def give_up() -> bool:
            nonlocal waits
            waits += 1
            # Each look comes after at most half a second of waiting, or after something was copied.
            return waits > 2 * END_S + staging.rows or self.ended() != ""

        assert self.assembler.fill(staging, give_up), f"no dataset came; ended: {self.ended() or 'none'}"

    def ended(self) -> str:
        """Names and reasons of processes that have ended, or ''."""
        dead = [name for name, process in self._processes.items() if not process.is_alive()]
        return "; ".join(f"{name}: {self.shared.failures.read(name)}" for name in dead)

    def wait_until_held_back(self) -> None:
        states = [self.shared.table.state(slot).name for slot in range(self.layout.num_slots)]
        full = eventually(lambda: self.held_back, END_S)
        assert full, f"slots are {states}; ended: {self.ended() or 'none'}"


class WitnessStaging(Staging):
    """A Staging that also checks the states of slots, and keeps the fields that a learner does not use.

    truncated, counts: [T, R] bool. firsts: [T+1, R] bool - is_first. places: slot and column of each row. taken: rows
    copied by (slot, generation).
    """

    def __init__(self, sampler: Sampling) -> None:
        super().__init__(sampler.shared.spec, sampler.layout, pin=False)
        steps = sampler.layout.rollout
        self._table = sampler.shared.table
        self.truncated = np.zeros((steps, self.rows), bool)
        self.counts = np.zeros((steps, self.rows), bool)
        self.firsts = np.zeros((steps + 1, self.rows), bool)
        self.places: list[tuple[int, int]] = []
        self.taken: dict[tuple[int, int], int] = {}

    def clear(self) -> None:
        super().clear()
        self.places = []

    def take(self, slot: Slot, start: int, most: int, columns: RowsOf = ALL_ROWS) -> int:
        key = slot.index, self._table.generation(slot.index)
        assert self._table.state(slot.index) is SlotState.READY
        assert self.taken.get(key, 0) == start, f"slot {key} is taken from row {start} on, after {self.taken.get(key)}"
        first = self.filled
        count = super().take(slot, start, most, columns)
        self.truncated[:, first : first + count] = slot.truncated[:, start : start + count]
        self.firsts[:, first : first + count] = slot.is_first[:, start : start + count]
        self.counts[:, first : first + count] = self.counted_in(slot)[:, start : start + count]
        self.places += [(slot.index, start + row) for row in range(count)]
        assert key == (slot.index, self._table.generation(slot.index))
        assert self._table.state(slot.index) is SlotState.READY
        self.taken[key] = start + count
        return count

    @staticmethod
    def counted_in(slot: Slot) -> Array:
        """[T, rows] bool - valid rows, and of several agents one."""
        return slot.valid if slot.counts_env_step is None else slot.counts_env_step

    def untaken_env_steps(self, slots: list[Slot]) -> int:
        """Env steps in ``slots`` (all READY) that were not copied."""
        taken = [self.taken.get((slot.index, self._table.generation(slot.index)), 0) for slot in slots]
        return sum(int(self.counted_in(slot)[:, start:].sum()) for slot, start in zip(slots, taken, strict=True))

    def snapshot(self) -> dict[str, Array]:
        fields: dict[str, Array] = {"obs": self.obs["obs"].numpy(), "action": self.actions["action"].numpy()}
        fields |= {name: tensor.numpy() for name, tensor in self.scalars.items()}
        fields |= {"truncated": self.truncated, "is_first": self.firsts, "counts": self.counts}
        fields["rnn_states"] = self.rnn_states.numpy()
        return {name: array.copy() for name, array in fields.items()}
