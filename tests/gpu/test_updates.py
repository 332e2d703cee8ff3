"""Learning on a GPU gives the weights that learning on the CPU gives, and does not wait between minibatches."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.schema import OptimConfig
from sfactory.errors import RankLost
from sfactory.learner.checkpointing import Progress, payload_of, restore, take_over
from sfactory.learner.recorded_updates import RecordedUpdates
from sfactory.learner.train_stats import on_host
from sfactory.learner.trainer import Trainer
from sfactory.ranks.distributed import DistributedRanks
from sfactory.ranks.place import Place
from sfactory.system.cuda_graphs import WARM_UPS, GraphRecorder, Recorder
from tests.support.equality import assert_same
from tests.support.gpu import made_up_batch, waits
from tests.support.updates import CASES, RNN, Case, learner_of, weights_of

GIB = 2**30
R = TypeVar("R")


def learned(case: Case, device: torch.device) -> tuple[Trainer, Tensor, Tensor]:
    """A trainer after three datasets, its weights before and after; of two of them, no minibatch waits for another."""
    trainer = learner_of(case, device)
    before = weights_of(trainer)
    batch = made_up_batch(trainer.model.spec, trainer.model.state_size, case.agents, case.steps, case.rows)
    batch = batch.map(lambda tensor: tensor.to(device))
    trainer.train(batch)
    with waits(device, "default" if case.waits else "error"):
        trainer.train(batch)
        trainer.train(batch)
    return trainer, before, weights_of(trainer)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_weights_are_those_of_the_cpu_and_minibatches_do_not_wait(
    case: Case, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_the_end_of_a_pass(rows: list[Tensor]) -> Any:
        with waits(device, "default"):
            return on_host(rows)

    expected, before, weights = learned(case, torch.device("cpu"))
    monkeypatch.setattr("sfactory.learner.trainer.on_host", at_the_end_of_a_pass)

    trainer, found_before, found = learned(case, device)

    assert {tensor.device.type for tensor in trainer.model.state_dict().values()} == {device.type}
    assert torch.equal(before, found_before)
    assert (trainer.train_step, trainer.stats.means.updates) == (expected.train_step, expected.stats.means.updates)
    assert torch.isfinite(found).all()
    if case.draws:
        return
    far, moved = float((found - weights).norm()), float((weights - before).norm())
    assert moved > 0
    exact = case.dtype is torch.float32
    assert far <= (1e-3 if exact else 1e-2) * float(weights.norm()), f"{far:.3g} of {float(weights.norm()):.3g}"
    assert far <= (0.05 if exact else 0.5) * moved, f"{far:.3g} of {moved:.3g}"


def recorder_on(device: torch.device) -> Recorder:
    return GraphRecorder(device) if device.type == "cuda" else PlainRecorder()


class PlainRecorder:
    """Computes again instead of replaying, to try tests on a CPU."""

    def warm_up(self, work: Callable[[], R]) -> R:
        return work()

    def record(self, work: Callable[[], R]) -> Callable[[], R]:
        return work

    def use_other_memory(self) -> None: ...


@pytest.fixture
def same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions add up in the same order each time."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def train(trainer: Trainer, device: torch.device, case: Case, *seeds: int, rows: int = 0) -> None:
    for seed in seeds:
        trainer.coefficients._rate = 1e-4 * (1 + seed)
        trainer.coefficients.exploration = 0.003 * seed
        spec, size = trainer.model.spec, trainer.model.state_size
        batch = made_up_batch(spec, size, case.agents, case.steps, rows or case.rows, seed)
        trainer.train(batch.map(lambda tensor: tensor.to(device)))


def assert_learned_alike(graphs: Trainer, eager: Trainer) -> None:
    assert isinstance(graphs._recorded, RecordedUpdates)
    assert graphs._recorded._recorder is not None, "a recording failed, see the log"
    torch.testing.assert_close(weights_of(graphs), weights_of(eager), rtol=1e-5, atol=1e-5)
    found, wanted = graphs.statistics(), eager.statistics()
    for name in ("policy_loss", "value_loss", "entropy", "kl", "grad_norm"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-5), name
    assert graphs.train_step == eager.train_step
    assert graphs.stats.skipped == eager.stats.skipped


RECORDED = [case for case in CASES if not case.draws and case.optim.get("optimizer", "adam") in ("adam", "adamw")]


@pytest.mark.usefixtures("same_kernels")
@pytest.mark.parametrize("case", RECORDED, ids=[case.name for case in RECORDED])
def test_graphs_learn_what_updates_learn_kernel_by_kernel(
    case: Case, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_the_end_of_a_pass(rows: list[Tensor]) -> Any:
        with waits(device, "default"):
            return on_host(rows)

    monkeypatch.setattr("sfactory.learner.trainer.on_host", at_the_end_of_a_pass)
    graphs, eager = learner_of(case, device, recorder_on(device)), learner_of(case, device)
    for trainer in (graphs, eager):
        train(trainer, device, case, *range(WARM_UPS + 1))
        trainer.clear()
    assert graphs._recorded is not None
    kinds = graphs._recorded._kinds.values()
    assert any(kind.replay is not None for kind in kinds)

    for seed in (5, 6, 7):
        batch = made_up_batch(graphs.model.spec, graphs.model.state_size, case.agents, case.steps, case.rows, seed)
        batch = batch.map(lambda tensor: tensor.to(device))
        for trainer in (graphs, eager):
            trainer.coefficients.exploration = 0.001 * seed
            with waits(device, "default" if case.waits or trainer is eager else "error"):
                trainer.train(batch)

    assert_learned_alike(graphs, eager)


@pytest.mark.usefixtures("same_kernels")
def test_graphs_follow_other_sizes_replaced_weights_settings_and_bad_batches(device: torch.device) -> None:
    case = Case("", model={**RNN, "normalize_input": True, "normalize_returns": True})
    other = learner_of(case, device)
    train(other, device, case, 8, 9)
    replaced = copy.deepcopy(payload_of(other, Progress(best_metric="reward")))
    graphs, eager = learner_of(case, device, recorder_on(device)), learner_of(case, device)
    for trainer in (graphs, eager):
        for rows in (8, 4) * (WARM_UPS + 2):
            train(trainer, device, case, 1, rows=rows)
        take_over(copy.deepcopy(replaced), "", trainer)
        train(trainer, device, case, *range(WARM_UPS + 3))
        algo = dataclasses.replace(trainer.algo, ppo_clip_ratio=0.05, value_loss_coeff=2.0)
        trainer.adopt(algo, OptimConfig(adam_beta1=0.5, max_grad_norm=0.1), trainer.learner, 0)
        train(trainer, device, case, *range(WARM_UPS + 2))
        before = weights_of(trainer)
        batch = made_up_batch(trainer.model.spec, trainer.model.state_size, seed=2)
        batch.rewards[0] = torch.nan
        batch.valid[0] = batch.taken[0] = True
        trainer.train(batch.map(lambda tensor: tensor.to(device)))
        assert trainer.stats.skipped == 1
        assert torch.equal(weights_of(trainer)[:100], before[:100])
        train(trainer, device, case, 1, 2)
    assert_learned_alike(graphs, eager)


@pytest.mark.parametrize("graphs", [False, True])
def test_a_compiled_loss_learns_what_the_plain_one_learns(
    graphs: bool, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    if device.type != "cuda":
        pytest.skip("tests/unit/learner/test_torch_compile.py does this on a CPU")
    torch.compiler.reset()
    case = Case("", model={"normalize_input": True}, algo={"with_vtrace": True})
    recorder = GraphRecorder(device) if graphs else None
    compiled = learner_of(case._replace(learner={"torch_compile": True}), device, recorder)
    plain = learner_of(case, device)
    for trainer in (compiled, plain):
        train(trainer, device, case, *range(WARM_UPS + 3))

    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    torch.testing.assert_close(weights_of(compiled), weights_of(plain), rtol=1e-4, atol=1e-4)
    if graphs:
        assert_learned_alike(compiled, plain)


@contextlib.contextmanager
def alone(device: torch.device, monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> Iterator[DistributedRanks]:
    """One GPU takes one rank. It adds up what it has by the same library and code as several."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    ranks = DistributedRanks(Place(0, 1, 0, 1), device, timeout_s, lambda: False)
    try:
        assert ranks.meet("word", lambda: False) == ["word"]
        assert ranks.broadcast(b"weights") == b"weights"
        yield ranks
    finally:
        torch.distributed.destroy_process_group()


def test_sums_of_ranks_are_taken_on_the_device(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("", model={"normalize_input": True, "normalize_returns": True})
    with alone(device, monkeypatch, timeout_s=30.0) as ranks:
        ranks.world = 2  # which has a learner collect what it adds up; it adds up its own alone
        with_sums, lone = learner_of(case, device, ranks=ranks), learner_of(case, device)
        for trainer in (with_sums, lone):
            train(trainer, device, case, 1, 2, 3)
        assert with_sums.whole.settle() is None

    torch.testing.assert_close(weights_of(with_sums), weights_of(lone), rtol=1e-5, atol=1e-5)


def keep_busy(device: torch.device, seconds: float) -> None:
    """Have the present stream compute nothing for about ``seconds``; returns at once."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(10**8)
    end.record()
    end.synchronize()
    torch.cuda._sleep(int(10**8 * 1000.0 * seconds / begin.elapsed_time(end)))


def test_a_sum_that_does_not_end_is_cut_off_and_what_was_learned_before_is_there_again(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type != "cuda":
        pytest.skip("on a CPU a sum itself raises")
    with alone(device, monkeypatch, timeout_s=3.0) as ranks:
        trainer, case = learner_of(Case("", model={"normalize_input": True}), device, ranks=ranks), Case("")
        train(trainer, device, case, 1, 2)
        assert trainer.whole.settle() is None
        before = copy.deepcopy(learned_in(payload_of(trainer, Progress(best_metric="reward"))))
        keep_busy(device, 5.0)

        with pytest.raises(RankLost, match="rank_timeout_sec"):
            train(trainer, device, case, 3)
        loss = trainer.whole.settle()

        assert loss is not None
        assert_same(learned_in(payload_of(trainer, Progress(best_metric="reward"))), before)
        with pytest.raises(RankLost, match="rank_timeout_sec"):
            train(trainer, device, case, 4)


def test_a_network_that_waits_for_the_device_is_trained_kernel_by_kernel(
    device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    case = Case("")
    graphs, eager = learner_of(case, device, recorder_on(device)), learner_of(case, device)
    for trainer in (graphs, eager):
        unroll = trainer.model.tower.unroll

        def waiting(*args: Any, unroll: Any = unroll) -> Any:
            stages = unroll(*args)
            assert float(stages.features.detach().sum()) < 1e9
            return stages

        trainer.model.tower.unroll = waiting  # type: ignore[assignment, method-assign]
        train(trainer, device, case, *range(WARM_UPS + 3))

    torch.testing.assert_close(weights_of(graphs), weights_of(eager), rtol=1e-5, atol=1e-5)
    if device.type == "cuda":
        (text,) = (record.getMessage() for record in caplog.records if "--cuda_graphs" in record.getMessage())
        assert "captur" in text
        free, cached = torch.cuda.mem_get_info()[0], torch.empty(GIB, dtype=torch.uint8, device=device)
        del cached
        torch.cuda.empty_cache()
        assert torch.cuda.mem_get_info()[0] >= free  # the allocator still gives memory back
        learner = learner_of(Case("", "images"), device, GraphRecorder(device))  # the device still works
        train(learner, device, Case("", "images"), *range(WARM_UPS + 2))
        assert learner._recorded is not None
        assert learner._recorded._recorder is not None


def learned_in(payload: dict[str, Any]) -> list[object]:
    """Weights, moments and updates. The optimizer's rates are set before each update."""
    return [payload["model"], payload["optimizer"]["state"], payload["train_step"]]


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_training_goes_from_the_cpu_to_the_device_and_back_with_equal_weights_and_moments(
    optimizer: str, device: torch.device, tmp_path: Path
) -> None:
    case = Case("", model={**RNN, "normalize_input": True}, optim={"optimizer": optimizer})
    cpu = torch.device("cpu")
    first, _, _ = learned(case, cpu)
    directory, progress = CheckpointDir(tmp_path, keep=2), Progress(best_metric="reward")

    def saved(trainer: Trainer, env_steps: int) -> dict[str, Any]:
        directory.save(payload_of(trainer, progress), trainer.train_step, env_steps)
        loaded = directory.load()
        assert loaded is not None
        return dict(loaded.payload)

    begun = saved(first, 1)
    there = learner_of(case, device)
    restore(begun, "", there, progress)
    assert_same(learned_in(saved(there, 2)), learned_in(begun))

    batch = made_up_batch(there.model.spec, there.model.state_size).map(lambda tensor: tensor.to(device))
    there.train(batch)
    continued = saved(there, 3)
    back = learner_of(case, cpu)
    restore(continued, "", back, progress)
    assert_same(learned_in(saved(back, 4)), learned_in(continued))
    assert back.train_step == first.train_step + 1
    back.train(batch.map(lambda tensor: tensor.cpu()))
    assert torch.isfinite(weights_of(back)).all()
