"""Ranks on two hosts train one policy, and end by name if the network between them, or a host, is lost."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from scripts.proc import marked
from sfactory.errors import ExitCode
from tests.flow.test_ranks import BY_FLAG, RANKS, assert_equal_weights, sums
from tests.support.hooks import FOLDER
from tests.support.namespaces import ADDRESSES, CARD, TwoHosts, two_hosts
from tests.support.trainer import CLEAN_S, ENDLESS, RunTrainer, TrainerRun, within

__all__ = ["two_hosts"]
TIMEOUT_S = 10.0
# From the loss of a host: the time-out twice (of a sum, and of the store after it), saving, and the end of torchrun.
END_S = within(3 * TIMEOUT_S)
MEET = (f"--rdzv-endpoint={ADDRESSES[0]}:29500", "--rdzv-backend=c10d", "--rdzv-id=two-hosts", "--nnodes=2")


def torchrun(hosts: TwoHosts, host: int) -> tuple[str, ...]:
    """The command on one of the hosts, with a rank."""
    place = (f"--rdzv-conf=is_host={1 - host}", f"--local-addr={ADDRESSES[host]}")
    return (*hosts.on(host), sys.executable, "-m", "torch.distributed.run", *MEET, *place, "--no-python")


@pytest.fixture
def pair(
    two_hosts: TwoHosts, run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[TrainerRun]:
    """A run on both hosts that has trained and saved."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", CARD)
    runs = [run_trainer(torchrun(two_hosts, host), **RANKS, train_for_env_steps=ENDLESS) for host in range(2)]
    runs[0].wait_until(lambda: len(sums(tmp_path, 1)) > 3 and runs[0].saved_env_steps() > 0, within(60.0))
    return runs


def result_line(run: TrainerRun) -> str:
    """The last line of the first rank; torchrun prints after it."""
    lines = [line for line in run.stderr.splitlines() if line.startswith("RESULT ")]
    return lines[-1] if lines else ""


def assert_host_0_has_ended_by_name(runs: list[TrainerRun], tmp_path: Path) -> None:
    """Its rank names the other one, and has saved its last whole update."""
    assert runs[0].wait(END_S) != ExitCode.DONE
    runs[0].assert_all_gone(CLEAN_S)
    assert "rank 1 (process " in result_line(runs[0]), runs[0].report("does not name the other rank")
    assert runs[0].result()["status"] == "failed"
    assert runs[0].saved_env_steps() == runs[0].result()["env_steps"]
    assert assert_equal_weights(tmp_path) > 1


@pytest.mark.long
def test_a_cut_between_hosts_ends_both_and_another_number_of_ranks_goes_on(
    pair: list[TrainerRun],
    two_hosts: TwoHosts,
    run_trainer: RunTrainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two_hosts.cut()

    assert_host_0_has_ended_by_name(pair, tmp_path)
    # torchrun itself waits for the store until the kernel gives up its connection, a quarter of an hour by default.
    pair[1].wait_until("rank 1 failed: .*the store of torchrun does not answer", END_S)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    saved = pair[0].saved_env_steps()
    limit = saved + 4096
    ranks = run_trainer(**{**BY_FLAG, "learner_devices": "cpu,cpu,cpu"}, train_for_env_steps=limit)
    ranks.assert_ended(ExitCode.DONE, within(120.0))
    assert f"resumed at {saved} env steps" in ranks.stderr
    assert ranks.result()["env_steps"] >= limit


@pytest.mark.long
def test_a_host_that_dies_ends_the_other(pair: list[TrainerRun], tmp_path: Path) -> None:
    for pid in marked(pair[1].mark):
        os.kill(pid, signal.SIGKILL)

    assert_host_0_has_ended_by_name(pair, tmp_path)
