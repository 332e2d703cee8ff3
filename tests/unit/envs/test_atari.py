"""Atari games have the frames, points and ends that the literature describes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from sfactory.env.factory import SPANS_FRAMES, make_env
from sfactory.errors import EnvError
from tests.support.long import long
from tests.support.scripted_env import batch_of

ale_py = pytest.importorskip("ale_py")
cv2 = pytest.importorskip("cv2")

NOOP, FIRE = 0, 1  # in Breakout's own action set


def make(name: str = "atari_breakout", env_frameskip: int = 4, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    return make_env(name, kwargs, None, env_frameskip)


class Emulator:
    """The game without preprocessing."""

    def __init__(self, rom: str) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(ale_py.roms.get_rom_path(rom))
        self.ale.reset_game()
        self.legal = self.ale.getMinimalActionSet()

    def act(self, action: int) -> tuple[int, np.ndarray]:
        """One frame: its points and its screen [210, 160] uint8."""
        points = self.ale.act(self.legal[action])
        return points, self.ale.getScreenGrayscale()


def small(*screens: np.ndarray) -> np.ndarray:
    return np.asarray(cv2.resize(np.max(screens, axis=0), (84, 84), interpolation=cv2.INTER_AREA))


def play(env: gymnasium.Env[Any, Any], actions: Any) -> list[tuple[bytes, float, bool, bool, int]]:
    """The results of the actions; resets after each end."""
    steps = []
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(action)
        steps.append((obs.tobytes(), float(reward), terminated, truncated, info["lives"]))
        if terminated or truncated:
            env.reset()
    return steps


def random_actions(env: gymnasium.Env[Any, Any], count: int, seed: int = 0) -> list[int]:
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    return [int(action) for action in np.random.default_rng(seed).integers(env.action_space.n, size=count)]


def lose_a_life(env: gymnasium.Env[Any, Any]) -> tuple[float, tuple[Any, float, bool, bool, dict[str, Any]]]:
    """Serve and miss the ball until a life is lost: (points, last step)."""
    lives, points = None, 0.0
    for step in range(400):
        result = env.step(FIRE if step % 10 == 0 else NOOP)
        points += float(result[1])
        if lives is not None and result[4]["lives"] < lives:
            return points, result  # type: ignore[return-value]
        lives = result[4]["lives"]
    raise AssertionError("no life was lost in 400 steps")


@pytest.mark.parametrize(
    ("name", "kwargs", "shape", "actions"),
    [
        ("atari_breakout", {}, (4, 84, 84), 4),
        ("ALE/Breakout-v5", {}, (4, 84, 84), 4),
        ("BreakoutNoFrameskip-v4", {"size": 64, "framestack": 3}, (3, 64, 64), 4),
        ("atari_breakout", {"grayscale": False, "full_action_space": True, "env_frameskip": 1}, (12, 84, 84), 18),
    ],
)
def test_observations_are_stacks_of_small_frames(
    name: str, kwargs: dict[str, Any], shape: tuple[int, ...], actions: int
) -> None:
    env = make(name, **kwargs)

    obs, info = env.reset(seed=0)
    after, reward, terminated, truncated, _ = env.step(FIRE)

    assert env.observation_space == gymnasium.spaces.Box(0, 255, shape, np.uint8)
    assert env.action_space == gymnasium.spaces.Discrete(actions)
    assert env.observation_space.contains(obs)
    assert env.observation_space.contains(after)
    assert (info, type(reward), terminated, truncated) == ({"lives": 5}, float, False, False)
    assert len(np.unique(obs)) > 3


@pytest.mark.parametrize("frameskip", [1, 4])
def test_frames_are_the_maximum_of_the_last_two_and_stacked_oldest_first(frameskip: int) -> None:
    env = make("atari_space_invaders", frameskip, noop_max=0)
    obs, _ = env.reset(seed=0)
    game = Emulator("space_invaders")
    assert all(np.array_equal(obs[0], frame) for frame in obs[1:])

    for action in random_actions(env, 60):
        before = obs.copy()
        obs, reward, *_ = env.step(action)
        frames = [game.act(action) for _ in range(frameskip)]

        assert np.array_equal(obs[:3], before[1:])
        assert np.array_equal(obs[3], small(*(screen for _, screen in frames[-2:])))
        assert reward == sum(points for points, _ in frames)


@pytest.mark.parametrize("framestack", [1, 4])
def test_observations_stay_as_they_were_returned(framestack: int) -> None:
    env = make(framestack=framestack, max_episode_frames=160)
    kept = [env.reset(seed=0)[0]]
    shown = [kept[0].tobytes()]

    for action in random_actions(env, 100):
        obs, _, terminated, truncated, _ = env.step(action)
        seen = [obs, env.reset()[0]] if terminated or truncated else [obs]
        kept += seen
        shown += [each.tobytes() for each in seen]

    assert [obs.tobytes() for obs in kept] == shown


def test_frameskip_of_the_kwargs_must_equal_that_of_the_flag() -> None:
    env = make(env_frameskip=2, frameskip=2, max_episode_frames=10)
    env.reset(seed=0)

    ends = [env.step(NOOP)[3] for _ in range(5)]

    assert ends == [False, False, False, False, True]
    with pytest.raises(EnvError, match=r"frameskip=2.*--env_frameskip=4|--env_frameskip=4.*frameskip=2"):
        make(env_frameskip=4, frameskip=2)


@pytest.mark.parametrize(("name", "sticky"), [("atari_breakout", 0.25), ("atari_freeway", 0.0)])
def test_seed_determines_the_game(name: str, sticky: float) -> None:
    fresh, used = (make(name, repeat_action_probability=sticky, episodic_life=True) for _ in range(2))
    actions = random_actions(fresh, 200, seed=1)
    used.reset(seed=99)
    play(used, random_actions(used, 150, seed=2))

    first, _ = fresh.reset(seed=7)
    again, _ = used.reset(seed=7)

    assert np.array_equal(first, again)
    assert play(fresh, actions) == play(used, actions)


@pytest.mark.parametrize("noop_max", [1, 7, long(30)])
def test_game_begins_with_1_to_noop_max_frames_of_doing_nothing(noop_max: int) -> None:
    env, game = make("atari_freeway", noop_max=noop_max), Emulator("freeway")
    starts = [small(game.act(NOOP)[1]).tobytes() for _ in range(30)]
    assert len(set(starts)) == 30
    env.reset(seed=0)

    noops = [starts.index(env.reset()[0][3].tobytes()) + 1 for _ in range(8 * noop_max)]

    assert set(noops) == set(range(1, noop_max + 1))


def test_sticky_actions_are_drawn_frame_by_frame() -> None:
    env = make("atari_space_invaders", repeat_action_probability=0.25, noop_max=0)
    obs, _ = env.reset(seed=6)
    game, draws = Emulator("space_invaders"), gymnasium.utils.seeding.np_random(6)[0]
    held, taken = 0, NOOP

    for action in random_actions(env, 200):
        obs, reward, *_ = env.step(action)
        frames = []
        for draw in draws.random(4):
            held += draw < 0.25
            taken = taken if draw < 0.25 else action
            frames.append(game.act(taken))

        assert np.array_equal(obs[3], small(frames[2][1], frames[3][1]))
        assert reward == sum(points for points, _ in frames)
    assert 0.2 < held / 800 < 0.3


def test_score_of_a_whole_game_is_reported_when_it_is_over() -> None:
    env = make()
    env.reset(seed=0)
    points, steps, lives, terminated = 0.0, 0, {5}, False

    while not terminated:
        _, reward, terminated, _, info = env.step(FIRE if steps % 10 == 0 else 2 + steps // 40 % 2)
        lives.add(info["lives"])
        points, steps = points + float(reward), steps + 1
        assert ("episode_extra_stats" in info) == terminated

    stats = {"game_score": points, "game_length": float(steps)}
    assert info == {"lives": 0, "true_objective": points, "episode_extra_stats": stats}
    assert points > 0.0
    assert lives == set(range(6))  # a lost life does not end a game


def test_episodic_life_ends_an_episode_with_each_life_and_the_game_with_the_last() -> None:
    env = make(episodic_life=True)
    _, info = env.reset(seed=0)
    total, ends = 0.0, []
    assert info == {"lives": 5}

    for life in range(5):
        points, (_, _, terminated, truncated, info) = lose_a_life(env)
        total += points
        ends.append(("true_objective" in info and "episode_extra_stats" in info, info["lives"]))
        assert info.get("game_continues") == (True if life < 4 else None)
        assert (terminated, truncated) == (True, False)
        obs, after = env.reset()
        assert np.array_equal(obs[0], obs[3])
        assert after["lives"] == (4 - life or 5)

    assert ends == [(False, 4), (False, 3), (False, 2), (False, 1), (True, 0)]
    assert info["episode_extra_stats"]["game_score"] == total
    assert info["true_objective"] == total
    lose_a_life(env)
    assert env.reset(seed=5)[1] == {"lives": 5}  # a seed begins a new game


def test_game_is_truncated_after_its_frames_and_restarts() -> None:
    env = make(max_episode_frames=40, episodic_life=True)

    for action in (FIRE, NOOP):
        env.reset(seed=0 if action == FIRE else None)
        steps = [env.step(action) for _ in range(10)]
        assert [step[2:4] for step in steps] == [(False, False)] * 9 + [(False, True)]
        assert steps[-1][4]["episode_extra_stats"]["game_length"] == 10.0


def test_fire_reset_begins_a_game_with_frameskip_frames_of_fire() -> None:
    game = Emulator("breakout")

    obs, _ = make(fire_reset=True, noop_max=0).reset(seed=0)
    frames = [game.act(FIRE)[1] for _ in range(4)]
    without_button = [make("atari_freeway", fire_reset=pressed).reset(seed=4)[0] for pressed in (True, False)]

    assert np.array_equal(obs[3], small(*frames[2:]))
    assert np.array_equal(*without_button)


def test_truncated_games_keep_their_final_observation_beside_running_ones() -> None:
    limits = (20, 28, 1000)
    group = batch_of([make(max_episode_frames=limit) for limit in limits])
    lone = [make(max_episode_frames=limit) for limit in limits]
    group.reset([1, 2, 3])
    expected = [env.reset(seed=seed)[0].copy() for env, seed in zip(lone, (1, 2, 3), strict=True)]
    ended = [False] * len(limits)

    for action in random_actions(lone[0], 60):
        group.step([action] * len(limits))
        for index, env in enumerate(lone):
            if ended[index]:
                expected[index], ended[index] = env.reset()[0].copy(), False
                continue
            obs, _, terminated, ended[index], _ = env.step(action)
            expected[index] = (env.reset()[0] if terminated else obs).copy()

        assert all(np.array_equal(obs, own) for obs, own in zip(group.observations, expected, strict=True))


def test_screen_is_rendered_in_color() -> None:
    env = make_env("atari_breakout", {}, "rgb_array", 4)
    env.reset(seed=0)

    screen = env.render()

    assert isinstance(screen, np.ndarray)
    assert screen.shape == (210, 160, 3)
    assert screen.dtype == np.uint8
    assert len(np.unique(screen.reshape(-1, 3), axis=0)) > 3
    assert (env.metadata["render_fps"], env.metadata[SPANS_FRAMES]) == (15.0, True)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"env_frameskip": 0, "size": 8.5}, "frameskip=0: must be a whole number of at least 1; size=8.5"),
        ({"repeat_action_probability": 1.5}, "repeat_action_probability=1.5: must be from 0 to 1"),
        ({"stack": 4}, "'stack'"),
        ({"render_mode": "human"}, "'rgb_array'"),
    ],
)
def test_options_out_of_range_are_refused_by_name(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(EnvError, match=says):
        make(**kwargs)
