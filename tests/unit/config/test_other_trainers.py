"""Command lines of other trainers go through, or are answered with what is here in place of their flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory.config.ancestors import ancestor_hint, ancestors, entries
from sfactory.config.argv import ALGO, CONFIG, PRINT_CONFIG
from sfactory.config.commands import evaluate_flags, match_flags
from sfactory.config.env_names import GYMNASIUM_IDS
from sfactory.config.flags import all_flags, values_of
from tests.support.command_line import PLAIN_ENV, read, refused

KNOWN = {flag.name for flag in (ALGO, CONFIG, PRINT_CONFIG)} | {"help", *all_flags()}
# What follows the module in commands of Sample Factory's documentation.
EXAMPLES = [
    "--env=mujoco_ant --experiment=Ant --train_dir=./train_dir",
    "--algo=APPO --env=mujoco_ant --experiment=experiment_name",
    "--env=mujoco_ant --serial_mode=True --async_rl=False --num_workers=1 --num_envs_per_worker=2",
    "--env=mujoco_humanoid --train_dir=./sf_train_dir --experiment=Humanoid --seed=42 --async_rl=True",
    "--algo=APPO --env=mujoco_pendulum --train_for_env_steps=100000000 --serial_mode=True",
    "--env=doom_basic --experiment=DoomBasic --num_workers=16 --num_envs_per_worker=10 --train_for_env_steps=1000000",
    "--algo=APPO --env=doom_basic --train_for_env_steps=3000000 --num_workers=20 --num_envs_per_worker=20",
    "--env=doom_my_way_home --train_for_env_steps=500000000 --algo=APPO --env_frameskip=4 --use_rnn=True "
    "--num_workers=36 --num_envs_per_worker=8 --num_policies=1 --rollout=32 --recurrence=32 --batch_size=2048",
    "--algo=APPO --env=doom_health_gathering_supreme --env_frameskip=4 --with_pbt=True --num_policies=8",
    "--algo=APPO --env=atari_breakout --experiment=breakout",
    "--algo=APPO --env=atari_montezuma --experiment=montezuma",
    "--env=atari_pong --batch_size=256 --num_epochs=4 --num_batches_per_epoch=4 --rollout=128 --use_rnn=False",
    "--env=CartPole-v1 --experiment=gym --use_rnn=False --rnn_size=256 --save_every_sec=5 --reward_scale=0.1",
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty directory; no family lacks a package."""
    monkeypatch.setattr("sfactory.config.validation.lack_of_family", lambda family: "")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", EXAMPLES)
def test_documented_commands_of_sample_factory_are_read(words: str) -> None:
    resolved = read(*words.split())

    given = dict(word[2:].split("=") for word in words.split())
    assert resolved.config.run.env == GYMNASIUM_IDS.get(given["env"], given["env"])
    assert ("--algo=APPO is what sfactory does in any case; it may be left out" in resolved.warnings) == (
        "algo" in given
    )
    assert resolved.config.run.experiment == given.get("experiment", resolved.config.run.experiment)


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("--algo=DQN", "is Sample Factory v2's name; here it is --policy_loss or --with_vtrace"),
        ("--with_wandb=True", "is Sample Factory v2's and Sample Factory v1's name; here it is --observers=wandb"),
        ("--env_gpu_actions=True", "is Sample Factory v2's name; here it is an environment that is a TensorEnv"),
        ("--frame_stack=4", "is Stable-Baselines3's name; here it is --env_framestack"),
        ("--num_gpus=1", "is RLlib's name; here it is --device"),
        ("--env_config={}", "is RLlib's name; here it is --env_kwargs."),
        ("--env_config={}", """of a class with __init__(self, config): --env_kwargs='{"config": {...}}\'"""),
        ("--policies_to_train=red", "is RLlib's name; here it is --train_policies"),
        ("--policies=red", "is RLlib's name; here it is --num_policies"),
        ("--policy_mapping_fn=f", "is RLlib's name; here it is --policy_mapping"),
        ("--num_learners=2", "is RLlib's name; here it is --learner_devices or torchrun"),
        ("--observation_filter=NoFilter", "is RLlib's name; here it is --normalize_input"),
        ("--use_lstm=True", "here it is --use_rnn or --rnn_type. --use_rnn=True --rnn_type=lstm"),
        ("--fcnet-hiddens=64", "is RLlib's name; here it is --encoder_mlp_layers"),
        ("--clip_rewards=True", "is RLlib's name; here it is --reward_clip"),
        ("--explore=False", "is RLlib's name; here it is --eval_deterministic"),
        ("--checkpoint-freq=10", "is RLlib's name; here it is --save_milestones_sec. In seconds"),
        ("--save_freq=10000", "is Stable-Baselines3's name; here it is --save_milestones_sec. In seconds"),
        ("--restart_failed_env_runners=True", "is RLlib's name; here it is --max_worker_restarts"),
        ("--batch_mode=complete_episodes", "there is no such flag here. Rollouts have a fixed length"),
        ("--count_steps_by=agent_steps", "there is no such flag here. A step of all agents counts as one"),
        ("--encoder_custom=x", "is Sample Factory v1's name; here it is --encoder"),
        ("--n_steps=5", "is Stable-Baselines3's name; here it is --rollout"),
        ("--n_steps=2048", "32 environments with --rollout=64 --batch_size=64 --num_batches_per_epoch=32"),
        ("--total_timesteps=5", "is Stable-Baselines3's and CleanRL's name; here it is --train_for_env_steps"),
        ("--total-timesteps=5", "is Stable-Baselines3's and CleanRL's name; here it is --train_for_env_steps"),
        ("--track", "is Stable-Baselines3's and CleanRL's name; here it is --observers=wandb"),
        ("--learning-starts=5", "there is no such flag here. Belongs to algorithms with a replay buffer"),
        ("--lr=1", "is RLlib's name; here it is --learning_rate"),
        ("--capture_video=True", "here it is --eval_video"),
        ("--hyperparams=x", "here it is --config"),
        ("--env_wrapper=m:W", "is a function in a module: def shaped(env): return Shaped(env, scale=2)"),
        ("--wrapper_kwargs={}", "here it is --wrapper. One with arguments is a function in a module: def shaped(env)"),
        ("--gym-id=CartPole-v1", "is CleanRL's name; here it is --env"),
        ("--net_arch=64", "is Stable-Baselines3's name; here it is --encoder_mlp_layers"),
        ("--net_arch=64", "behind a network of your own (--encoder) they are --decoder_mlp_layers"),
        ("--features_extractor_class=x", "is Stable-Baselines3's name; here it is --encoder. "),
        ("--features_extractor_kwargs={}", "is Stable-Baselines3's name; here it is --model_kwargs. "),
        ("--normalize_images=False", "here it is --normalize_input or --obs_subtract_mean or --obs_scale"),
        ("--share_features_extractor=True", "or none; there the layers of net_arch stay apart"),
        ("--optimize-hyperparameters", "here it is python -m sfactory.launcher"),
        ("--save_video=True", "is a flag of sfactory.enjoy, not of this command"),
        ("--csv=x", "is a flag of sfactory.evaluate, not of this command"),
        ("--num_wokers=5", "unknown flag; did you mean --num_workers?"),
    ],
)
def test_a_known_name_of_another_trainer_is_answered_and_only_others_get_a_guess(word: str, answer: str) -> None:
    (problem,) = refused(PLAIN_ENV, word)

    assert problem.startswith(word.partition("=")[0])
    assert answer in problem
    assert ("did you mean" in problem) == answer.startswith("unknown")


@pytest.mark.parametrize("name", ["n_eval_episodes", "evaluation_num_episodes", "evaluation_duration"])
def test_a_number_of_episodes_has_the_name_that_the_command_has_for_it(name: str) -> None:
    answers = [ancestor_hint(name, known, "--") for known in (KNOWN, evaluate_flags, match_flags)]

    here = [answer.partition("here it is ")[2].partition(".")[0] for answer in answers]
    assert here == ["--eval_episodes", "--episodes", "--episodes"]


@pytest.mark.parametrize(("word", "is_theirs"), [("--n_steps=64", True), ("--stick=64", False)])
def test_a_name_of_another_trainer_is_not_taken_for_an_argument_of_an_own_env(word: str, is_theirs: bool) -> None:
    problem, *_ = refused("--env=my_envs:Pick", word)

    assert ("here it is --rollout" in problem) == is_theirs
    assert ("arguments of my_envs:Pick are given as" in problem) == (not is_theirs)


def test_every_flag_of_every_other_trainer_has_an_answer() -> None:
    theirs = {name for known in ancestors() for name in known.flags}

    hints = {name: ancestor_hint(name, KNOWN, "--") for name in theirs - KNOWN}

    assert [name for name, hint in hints.items() if not hint] == []
    assert [hint for hint in hints.values() if "`" in hint or "\n" in hint] == []
    assert len(hints) > 150
    assert {entry.name for entry in entries()} == theirs


def test_names_of_sample_factory_lead_to_registered_ids() -> None:
    mujoco = [name for name in GYMNASIUM_IDS if name.startswith("mujoco_")]

    assert [values_of(read(f"--env={name}").config)["env"] for name in mujoco] == [GYMNASIUM_IDS[n] for n in mujoco]
    assert "did you mean mujoco_ant?" in refused("--env=mujoco_amt")[0]
