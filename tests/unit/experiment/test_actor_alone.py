"""A policy acts, plays and is exported without the observations that only its critic read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from envs.synthetic.hidden_luck import HiddenLuck
from sfactory import enjoy, export
from sfactory.config.flags import all_flags, coerce, config_of
from sfactory.config.schema import ModelConfig
from sfactory.errors import ExitCode
from sfactory.model.actor_critic import ActorCritic
from sfactory.play.player import Episode, Player
from sfactory.play.rendering import show_nothing
from sfactory.spec import EnvSpec
from tests.support.saved_run import TRUSTED, checkpoints, payload, save_run

LUCK = "sfactory_envs.synthetic.hidden_luck:HiddenLuck"
APART: dict[str, Any] = {
    "critic_obs_keys": ("critic",),
    "actor_critic_share_weights": False,
    "obs_layout": ("critic=flat",),
    "encoder_mlp_layers": (8,),
    "use_rnn": True,
    "rnn_size": 4,
}
OUT = "actor.safetensors"


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def model_of(config: ModelConfig) -> ActorCritic:
    """A policy over HiddenLuck with drawn weights and statistics."""
    torch.manual_seed(0)
    env = HiddenLuck()
    model = ActorCritic(EnvSpec.of_spaces(env.observation_space, env.action_space).for_model(config), config).eval()
    with torch.no_grad():
        model.policy_head.linear.weight.normal_()
    model.observe(
        {path: torch.randn(50, *leaf.shape) for path, leaf in model.spec.obs}, torch.ones(50, dtype=torch.bool)
    )
    return model


@pytest.mark.parametrize("deterministic", [True, False])
def test_play_is_the_same_where_the_env_does_not_show_what_the_critic_read(deterministic: bool) -> None:
    model = model_of(config_of(APART).model)

    def episodes(shows_luck: bool) -> list[Episode]:
        env = HiddenLuck(shows_luck=shows_luck)
        player = Player(env, model.spec, model, show_nothing, name="luck", deterministic=deterministic)
        return list(player.episodes(5, 1000, seed=1))

    assert episodes(shows_luck=True) == episodes(shows_luck=False)


@pytest.mark.parametrize("keys", [(), ("critic",), ("policy", "critic")], ids=str)
def test_enjoy_and_export_take_the_actor_alone(keys: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    flags = {**APART, "normalize_input_keys": keys}
    model = model_of(config_of(flags).model)
    played = []
    for name, shows_luck in (("seeing", True), ("blind", False)):
        save_run(name, LUCK, None, **flags, env_kwargs={"shows_luck": shows_luck})
        saved = {**payload(1.0), "model": model.state_dict(), "env_spec": model.spec.plain()}
        checkpoints(name).save(saved, train_step=7, env_steps=70)
        assert enjoy.main([f"--experiment={name}", TRUSTED, "--eval_deterministic=True", "--seed=5"]) == ExitCode.DONE
        played.append({**json.loads(capsys.readouterr().out), "checkpoint": ""})
    assert export.main(["--experiment=blind", TRUSTED, f"--out={OUT}"]) == ExitCode.DONE

    assert played[0] == played[1]
    with safe_open(OUT, "pt") as file:
        facts = file.metadata()
    spec = EnvSpec.of_plain(json.loads(facts["env_spec"]))
    values = {name: coerce(all_flags()[name], value) for name, value in json.loads(facts["model_config"]).items()}
    assert [path for path, _ in spec.obs] == ["policy"]
    alone = ActorCritic(spec, config_of(values).model).eval()
    weights = load_file(OUT)
    alone.load_state_dict(weights)
    assert not any(name.startswith("critic") for name in weights)

    obs = {path: torch.randn(6, *leaf.shape) for path, leaf in model.spec.obs}
    state = torch.randn(6, 8)
    ours, theirs = model(obs, state), alone({"policy": obs["policy"]}, state[:, :4])
    assert torch.equal(ours.dist_params, theirs.dist_params)
    assert torch.equal(ours.state[:, :4], theirs.state)
    assert torch.equal(theirs.value, torch.zeros(6))
