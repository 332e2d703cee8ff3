"""Flags of a run with a TensorEnv fit it, or are refused with what to type instead."""

from __future__ import annotations

import pytest

from sfactory.config.flags import values_of
from sfactory.config.resolve import read_command_line
from sfactory.errors import ConfigError
from sfactory.planning.resident_rules import fitted_to_tensors

ENV = "--env=sfactory_envs.synthetic.counting_tensors:CountingTensors"
PLAIN = ENV, "--restart_behavior=overwrite", "--task_defaults=False", "--train_dir=/nowhere"


def fitted(*flags: str) -> dict[str, object]:
    """The values of all flags."""
    return values_of(fitted_to_tensors(read_command_line([*PLAIN, *flags])).config)


def test_what_is_not_set_is_fitted() -> None:
    values = fitted("--rollout=16", "--batch_size=1024", "--num_batches_per_epoch=2")
    assert values["num_envs_per_worker"] == 128
    names = ("serial_mode", "async_rl", "inference", "num_workers", "worker_num_splits")
    assert [values[name] for name in names] == [True, False, "local", 1, 1]

    values = fitted("--rollout=16", "--num_envs_per_worker=100")
    assert values["batch_size"] == 1600


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--num_workers=2"], "--num_workers=2: the env is a TensorEnv"),
        (["--serial_mode=False"], "or set --serial_mode=True"),
        (["--async_rl=True"], "or set --async_rl=False"),
        (["--inference=central"], "or set --inference=local"),
        (["--worker_num_splits=2", "--num_envs_per_worker=4"], "or set --worker_num_splits=1"),
        (["--num_policies=2", "--with_pbt=True"], "--with_pbt=True: the env is a TensorEnv"),
        (["--replay_proportion=0.5", "--replay_slots=64"], "old rows are not kept"),
        (["--core_inputs", "reward", "--use_rnn=True"], "put them into the observations"),
        (["--actor_worker_gpus", "0"], "--device names the GPU"),
        (["--benchmark=True"], "a benchmark measures the processes"),
        (["--autotune=True"], "there are no processes to tune"),
        (["--ring_warmup=1", "--num_epochs=2"], "every dataset then gets all num_epochs passes"),
        (["--eval_interval_sec=60"], "an evaluation has processes of its own"),
        (["--num_envs_per_worker=100", "--rollout=16", "--batch_size=1024"], "nearest is batch_size 1600"),
    ],
)
def test_what_it_cannot_have_is_refused(flags: list[str], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        fitted(*flags)
    assert text in str(error.value)
