"""Action masks in observations and in infos: how they are found, joined and kept to."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import pytest

from sfactory.benchmark.pure_simulation import _plain_envs
from sfactory.config.flags import config_of
from sfactory.config.schema import ModelConfig
from sfactory.env.conversion import BadObservation
from sfactory.env.factory import EnvFactory
from sfactory.env.info_masks import InfoMaskAgentsEnv, MaskJoiner
from sfactory.env.legal_actions import LegalActions, legal_rows
from sfactory.errors import EnvError
from sfactory.planning.env_inspection import inspect_env
from sfactory.planning.env_probe import examine
from sfactory.spec import EnvSpec, leaves
from sfactory_envs.synthetic.masked_arms import MaskedArms

ARMS = "sfactory_envs.synthetic.masked_arms:MaskedArms"


class Strict(MaskedArms):  # type: ignore[misc]
    """Raises on an illegal action."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if reward < 0:
            raise ValueError(f"{action} is illegal")
        return obs, reward, terminated, truncated, info


def strict(**how: Any) -> gymnasium.Env[Any, Any]:
    return Strict(**how)


def strict_vector(num_envs: int, **how: Any) -> gymnasium.vector.SyncVectorEnv:
    return gymnasium.vector.SyncVectorEnv([lambda: Strict(**how)] * num_envs)


class Renamed(Strict):
    """The same with a mask of another name, and another one in its infos, which is not to be read."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            context=spaces.Discrete(10), legal=spaces.Box(0, 1, (50,), np.int8), seen=spaces.Box(0, 1, (2,))
        )

    def _shown(self) -> tuple[Any, dict[str, Any]]:
        obs, _ = super()._shown()
        mask = obs.pop("action_mask")
        return {**obs, "legal": mask, "seen": np.zeros(2, np.float32)}, {"action_mask": 1 - mask}


def renamed_vector(num_envs: int) -> gymnasium.vector.SyncVectorEnv:
    return gymnasium.vector.SyncVectorEnv([Renamed] * num_envs)


class StuckArms(MaskedArms):  # type: ignore[misc]
    """Allows nothing from the first step on."""

    def _draw(self) -> None:
        self._mask[:] = 0


class Pair:
    """Two agents with PettingZoo's parallel interface, who get masks in their infos, and raise on an illegal action."""

    def __init__(self, renamed: bool = False) -> None:
        self.possible_agents, self.agents = ["a", "b"], ["a", "b"]
        self._arms = {agent: Renamed() if renamed else Strict(mask="info") for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Any:
        return self._arms[agent].observation_space

    def action_space(self, agent: str) -> Any:
        return self._arms[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        shown = {agent: self._arms[agent].reset(seed=seed) for agent in self.agents}
        return {agent: obs for agent, (obs, _) in shown.items()}, {agent: info for agent, (_, info) in shown.items()}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        steps = {agent: self._arms[agent].step(actions[agent]) for agent in self.agents}
        self.agents = [agent for agent, step in steps.items() if not step[2]]
        parts = [{agent: step[part] for agent, step in steps.items()} for part in range(5)]
        return tuple(parts)

    def close(self) -> None:
        pass


class PairInTurn(Pair):
    """The same with PettingZoo's interface of turns: the agents alternate."""

    def agent_iter(self) -> None: ...

    def reset(self, seed: int | None = None, options: Any = None) -> None:  # type: ignore[override]
        self._shown, self._infos = super().reset(seed=seed)
        self._ends: dict[str, Any] = dict.fromkeys(self.agents, (0.0, False, False))
        self.agent_selection = self.agents[0]

    def last(self) -> tuple[Any, ...]:
        agent = self.agent_selection
        return self._shown[agent], *self._ends[agent], self._infos[agent]

    def step(self, action: Any) -> None:  # type: ignore[override]
        agent = self.agent_selection
        if action is None:
            self.agents.remove(agent)
        else:
            self._shown[agent], *ends, self._infos[agent] = self._arms[agent].step(action)
            self._ends[agent] = tuple(ends)
        others = [other for other in self.agents if other != agent]
        self.agent_selection = (others or self.agents or [agent])[0]


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        *[("strict", "obs"), ("strict", "info"), ("strict_vector", "obs"), ("strict_vector", "info")],
        *[("Pair", "info"), ("PairInTurn", "info")],
    ],
)
def test_env_that_refuses_illegal_actions_passes_the_probe(name: str, mask: str) -> None:
    kwargs = {} if name.startswith("Pair") else {"mask": mask}
    factory = EnvFactory(f"tests.unit.env.test_action_masks:{name}", kwargs, info_action_mask="auto")

    probed = examine(factory, timed=name != "strict_vector")

    assert probed.info_action_mask == (mask == "info")
    assert [leaf.heads for _, leaf in probed.spec.masks] == [(50,)]


def factory_of(env: str, *layouts: str, **flags: Any) -> EnvFactory:
    name = env if ":" in env else f"{__name__}:{env}"
    return EnvFactory.of(config_of({"env": name, "info_action_mask": "auto", "obs_layout": layouts, **flags}))


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("Renamed", {}), ("renamed_vector", {}), ("Pair", {"renamed": True}), ("PairInTurn", {"renamed": True})],
)
def test_a_mask_that_a_flag_names_is_kept_to_before_a_run(name: str, kwargs: dict[str, Any]) -> None:
    factory = factory_of(name, "legal=mask", env_kwargs=kwargs)

    probed = examine(factory, timed=name != "renamed_vector")
    report = inspect_env(factory, steps=30)

    assert not probed.info_action_mask
    assert [(path, leaf.heads) for path, leaf in probed.spec.masks] == [("legal", (50,))]
    assert not [finding for finding in report.findings if finding.code.endswith(".raised")]
    with pytest.raises((EnvError, ValueError), match="is illegal"):
        examine(factory_of(name, env_kwargs=kwargs, info_action_mask="off"))


def test_pure_simulation_keeps_to_a_mask_that_a_flag_names() -> None:
    simulated = _plain_envs(factory_of("Renamed", "legal=mask"), 0, 1, lambda: None)

    assert simulated(0.0) > 0.0


def test_actions_stick_where_a_flag_reads_the_mask_as_numbers() -> None:
    for name, layouts in (("Renamed", ("legal=mask",)), (ARMS, ()), (ARMS, ("action_mask=mask",))):
        with pytest.raises(EnvError, match=r"--sticky_actions=0\.25: an action that is taken again may be illegal"):
            factory_of(name, *layouts, sticky_actions=0.25)()
    examine(factory_of(ARMS, "action_mask=flat", sticky_actions=0.25))
    assert not examine(factory_of("StuckArms", "action_mask=flat")).spec.masks
    assert not examine(factory_of("StuckArms", "by_rank")).spec.masks


def test_wrappers_leave_a_mask_as_it_is_that_a_flag_names() -> None:
    stacked, flat = (
        factory_of("Renamed", "legal=mask", **flags)() for flags in ({"env_framestack": 3}, {"flatten_obs": True})
    )
    shapes = [{key: leaf.shape for (key,), leaf in leaves(env.observation_space)} for env in (stacked, flat)]

    assert shapes == [{"context": (), "legal": (50,), "seen": (3, 2)}, {"legal": (50,), "obs": (12,)}]
    obs, _ = flat.reset(seed=1)
    assert obs["legal"].sum() == 5
    assert obs["obs"].sum() == 1


def test_a_tree_of_masks_has_no_other_name() -> None:
    space, actions = spaces.Dict(legal=spaces.Tuple([spaces.MultiBinary(2)])), spaces.Tuple([spaces.Discrete(2)])
    with pytest.raises(EnvError, match=r"--obs_layout=legal=mask: .* the keys legal/0; .*call it action_mask"):
        EnvSpec.of_spaces(space, actions).masked_by(("legal=mask",))


def test_a_mask_of_agents_of_different_spaces_has_no_other_name() -> None:
    with pytest.raises(EnvError, match=r"--obs_layout=guide/legal=mask: .*where agents have .*call it action_mask"):
        examine(factory_of("tests.support.unequal_agents:Unequal", "guide/legal=mask"))


def test_masks_in_infos_are_left_out_if_the_flag_says_so() -> None:
    assert not examine(EnvFactory(ARMS, {"mask": "info"}, info_action_mask="off")).spec.masks


def test_env_that_allows_nothing_is_refused() -> None:
    factory = EnvFactory("tests.unit.env.test_action_masks:StuckArms")
    with pytest.raises(EnvError, match=r"reset\(\): observation 'action_mask' allows no action"):
        examine(factory)


def test_masks_of_infos_are_joined_with_observations() -> None:
    plain, two = spaces.Box(0, 1, (2,)), spaces.Tuple([spaces.Discrete(3), spaces.MultiDiscrete([2, 2])])
    joiner = MaskJoiner(plain, two)
    masks = {"action_mask": (np.array([1, 0, 1]), (np.array([True, False]), np.array([0, 1])))}

    joined = joiner.join(np.zeros(2), masks)

    assert joined["action_mask"].tolist() == [1, 0, 1, 1, 0, 0, 1]
    assert joiner.space["obs"] == plain
    assert joiner.join(np.zeros(2), {})["action_mask"].tolist() == [0] * 7
    nested = MaskJoiner(spaces.Dict(a=plain), spaces.Discrete(2))
    assert set(nested.join({"a": np.zeros(2)}, {"action_mask": [True, False]})) == {"a", "action_mask"}
    with pytest.raises(BadObservation, match="has 6 elements, and the actions have 7 choices"):
        joiner.join(np.zeros(2), {"action_mask": np.ones(6)})
    with pytest.raises(EnvError, match="has none"):
        MaskJoiner(plain, spaces.Box(-1, 1, (2,)))


ORDERED = spaces.Dict(move=spaces.Discrete(3), attack=spaces.Discrete(2), aim=spaces.Box(-1, 1, (2,)))
MOVE, ATTACK = np.array([1, 0, 1]), np.array([0, 1])


def test_a_dict_of_masks_has_the_order_of_the_action_space() -> None:
    assert [head.key for head in EnvSpec.of_spaces(spaces.Discrete(2), ORDERED).actions] == ["move", "attack", "aim"]
    joiner, batched = (MaskJoiner(spaces.Discrete(2), ORDERED, size) for size in (None, 2))
    pair, flags = spaces.Tuple([ORDERED, spaces.MultiDiscrete([2, 2])]), np.array([True, True])
    in_tuple = MaskJoiner(spaces.Discrete(2), pair)
    of_tuples = MaskJoiner(spaces.Discrete(2), spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]), 2)
    tree = {"attack": ATTACK, "move": MOVE}
    both = {"move": np.stack([MOVE, 1 - MOVE]), "_move": flags, "attack": np.stack([ATTACK, ATTACK]), "_attack": flags}
    by_env = np.array([None, None])
    by_env[1] = (MOVE, ATTACK)

    joined = [
        joiner.join(0, {"action_mask": tree}),
        joiner.join(0, {"action_mask": {**tree, "aim": None}}),
        in_tuple.join(0, {"action_mask": (tree, (np.array([1, 0]), np.array([0, 1])))}),
        batched.join(0, {"action_mask": both}),
        of_tuples.join(0, {"action_mask": (both["move"], both["attack"])}),
        of_tuples.join(0, {"action_mask": by_env}),
    ]

    flat, other = [1, 0, 1, 0, 1], [0, 1, 0, 0, 1]
    expected = [flat, flat, [*flat, 1, 0, 0, 1], [flat, other], [flat, other], [[0] * 5, flat]]
    assert [obs["action_mask"].tolist() for obs in joined] == expected


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ({"move": MOVE}, "is a dict of 'move', and the action space is Dict"),
        ({"move": MOVE, "attack": ATTACK, "jump": ATTACK}, "is a dict of 'move', 'attack', 'jump'"),
        ((MOVE, ATTACK), "is a tuple of 0, 1"),
        ({"move": ATTACK, "attack": MOVE}, r"\['move'\] has 2 elements, and the actions have 3"),
        ({"move": {"left": 1}, "attack": ATTACK}, r"\['move'\] is a dict of 'left'"),
        ("all", "cannot be read as an action mask"),
    ],
)
def test_a_mask_that_is_not_like_the_actions_is_refused(mask: Any, words: str) -> None:
    with pytest.raises(BadObservation, match=f"{words}.*: correct the env, or ignore its masks"):
        MaskJoiner(spaces.Discrete(2), ORDERED).join(0, {"action_mask": mask})


def test_masks_of_a_vector_env_are_joined_env_by_env() -> None:
    env = EnvFactory("tests.unit.env.test_action_masks:strict_vector", {"mask": "info"}, info_action_mask="on").vector(
        3, seed=0
    )
    obs, infos = env.reset(seed=1)
    assert obs["action_mask"].shape == (3, 50)
    assert (obs["action_mask"] == infos["action_mask"]).all()
    assert obs["action_mask"].sum() == 3 * 5


def test_legal_actions_are_drawn_from_all_that_are_legal() -> None:
    env = MaskedArms(heads=2)
    spec = EnvSpec.of_spaces(env.observation_space, env.action_space).for_model(ModelConfig())
    obs, _ = env.reset(seed=0)
    legal = LegalActions(spec, env, np.random.default_rng(0))

    drawn = np.array([legal.of([obs])[0] for _ in range(200)])

    for head in range(2):
        assert set(drawn[:, head]) == set(np.flatnonzero(obs["action_mask"].reshape(2, 50)[head]))
    first = legal_rows(spec, {"action_mask": obs["action_mask"][None], "context": np.zeros(1)})
    assert first["action/0"].tolist() == [np.flatnonzero(obs["action_mask"])[0]]


class InTurn:
    """Two agents of PettingZoo's interface of turns. Each has a box to choose from, or three choices.

    The second gives masks in its infos that forbid the choice 1.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["mover", "guide"], list[str]()
        self._acts = {"mover": spaces.Box(-1, 1, (2,)), "guide": spaces.Discrete(3)}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2,))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._acts[agent]

    def reset(self, seed: int | None = None, options: object = None) -> None:
        self.agents, self.agent_selection, self._turns = list(self.possible_agents), "mover", 0
        self.infos = {"mover": {}, "guide": {"action_mask": np.array([1, 0, 1], np.int8)}}

    def last(self) -> tuple[Any, ...]:
        over = self._turns >= 20
        return np.zeros(2, np.float32), 0.0, over, False, self.infos[self.agent_selection]

    def step(self, action: Any) -> None:
        self._turns += 1
        if action is None:
            self.agents.remove(self.agent_selection)
        assert self.agent_selection == "mover" or action != 1
        self.agent_selection = "guide" if self.agent_selection == "mover" else "mover"

    def agent_iter(self) -> None: ...

    def close(self) -> None: ...


def test_masks_in_infos_of_agents_of_different_spaces_are_those_of_their_kind() -> None:
    for name in ("tests.support.unequal_agents:MaskedUnequal", "tests.unit.env.test_action_masks:InTurn"):
        probed = examine(EnvFactory(name, info_action_mask="auto"))

        assert probed.info_action_mask
        for kind in probed.spec.kinds:
            masks = [(path, leaf.heads) for path, leaf in probed.spec.part(kind).masks]
            assert masks == ([("action_mask/guide", (3,))] if kind == "guide" else [])


def test_an_agent_without_masks_in_its_infos_may_do_anything() -> None:
    env = InfoMaskAgentsEnv(Pair())
    given = {"action_mask": np.zeros(50, np.int8)}
    shown = [env._join(agent, {"context": 0}, info)["action_mask"] for agent, info in (("a", given), ("b", {}))]
    assert [mask.any() for mask in shown] == [False, True]
    assert shown[1].all()


def test_an_agent_that_is_over_or_gone_may_do_nothing_without_a_mask() -> None:
    env = InfoMaskAgentsEnv(Pair())
    given = {"action_mask": np.ones(50, np.int8)}
    for agent in ("a", "b"):
        env._join(agent, {"context": 0}, given)
    env.env.agents = ["a"]

    shown = env._joined({"a": {"context": 0}, "b": {"context": 0}}, {}, [{"a": False}, {"a": True}])

    assert not shown["a"]["action_mask"].any()
    assert not shown["b"]["action_mask"].any()


class ForgetfulPair(PairInTurn):
    """Each agent has a mask in its first turn alone."""

    def step(self, action: Any) -> None:  # type: ignore[override]
        agent = self.agent_selection
        super().step(action)
        if not any(self._ends[agent]):
            self._infos[agent] = {}


def test_an_agent_that_has_no_mask_in_its_turn_any_more_is_a_fault() -> None:
    factory = EnvFactory(f"{__name__}:ForgetfulPair", info_action_mask="auto")

    with pytest.raises(EnvError, match="the info of agent 'a' has no 'action_mask', as an earlier one had"):
        examine(factory)


class HalfMasked(gymnasium.Env[Any, Any]):
    """Gives masks in the infos of one of its methods alone."""

    observation_space = spaces.Box(0.0, 1.0, (1,))
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, masked: str) -> None:
        self._masked = masked

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._obs(), self._info("reset")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._obs(), 0.0, False, False, self._info("step")

    def _obs(self) -> Any:
        return np.zeros(1, np.float32)

    def _info(self, method: str) -> dict[str, Any]:
        return {"action_mask": np.ones(2, np.int8)} if method == self._masked else {}


class Steered(HalfMasked):
    """Has no choices."""

    action_space = spaces.Box(-1.0, 1.0, (2,))

    def _info(self, method: str) -> dict[str, Any]:
        return {"action_mask": None} if method == self._masked else {}


def steered_vector(num_envs: int, masked: str) -> gymnasium.vector.SyncVectorEnv:
    return gymnasium.vector.SyncVectorEnv([lambda: Steered(masked)] * num_envs)


@pytest.mark.parametrize("name", ["Steered", "steered_vector"])
@pytest.mark.parametrize("masked", ["reset", "step"])
def test_a_mask_in_an_info_is_none_where_there_are_no_choices(name: str, masked: str) -> None:
    factory = EnvFactory(f"{__name__}:{name}", {"masked": masked}, info_action_mask="auto")

    assert not examine(factory).info_action_mask
    assert not [finding for finding in inspect_env(factory, 10).findings if "action_mask" in finding.text]
    with pytest.raises(EnvError, match="has none: correct the env, or ignore its masks"):
        examine(dataclasses.replace(factory, info_action_mask="on"))


def half_masked_vector(num_envs: int, masked: str) -> gymnasium.vector.SyncVectorEnv:
    return gymnasium.vector.SyncVectorEnv([lambda: HalfMasked(masked)] * num_envs)


@pytest.mark.parametrize(
    ("name", "masked", "problem"),
    [
        ("HalfMasked", "step", r"the info of step\(\) has 'action_mask', and that of reset\(\) has none"),
        ("half_masked_vector", "step", r"the info of step\(\) has 'action_mask', and that of reset\(\) has none"),
        ("HalfMasked", "reset", r"the info of step\(\) has no 'action_mask', as that of reset\(\) has"),
    ],
)
def test_masks_of_reset_or_step_alone_are_refused(name: str, masked: str, problem: str) -> None:
    factory = EnvFactory(f"{__name__}:{name}", {"masked": masked}, info_action_mask="auto")
    with pytest.raises(EnvError, match=f"{problem}: correct the env, or ignore its masks: --info_action_mask=off"):
        examine(factory)
    assert not examine(EnvFactory(factory.name, factory.kwargs, info_action_mask="off")).info_action_mask
