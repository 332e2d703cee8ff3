"""Flags of sampling, and of wrappers around environments."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from sfactory.config.field import flag
from sfactory.system.cores import Cores


@dataclass(frozen=True)
class SamplingConfig:
    """How experience is collected."""

    num_workers: int = flag(
        Cores.available().count, "number of actor processes; with remote_actors_port 0: none here", ge=0, le=4096
    )
    num_envs_per_worker: int = flag(2, "environments stepped by each actor; a multiple of worker_num_splits", ge=1)
    worker_num_splits: int = flag(
        2, "groups of envs per actor: one steps, others wait for actions; no effect with local inference", ge=1, le=64
    )
    inference: Literal["central", "local", "auto"] = flag(
        "auto",
        "where actions are computed: central uses policy workers that serve all actors; local gives each actor a CPU "
        "copy of the policy; auto is local, or central where there is a GPU and choosing an action costs an actor a "
        "quarter or more of an environment's step",
    )
    policy_workers_per_policy: int = flag(1, "inference processes per policy (central inference)", ge=1, le=64)
    async_rl: bool = flag(
        True, "collect while learning; False alternates between collecting a dataset and learning, with policy lag 0"
    )
    rollout: int = flag(32, "steps per trajectory", ge=1)
    min_traj_buffers_per_worker: int = flag(
        2,
        "trajectory slots for each split of an actor; more lets actors run further ahead; no effect where collection "
        "waits for training (async_rl=False or num_batches_to_accumulate=0)",
        ge=2,
        le=1024,
    )
    max_sample_requests_in_flight_per_worker: int = flag(
        0, "maximum trajectories of an actor that are being filled or wait for the learner; 0: all of its slots", ge=0
    )
    decorrelate_experience_max_seconds: float = flag(
        0.0,
        "after its first trajectories actor i of N waits i/N of this many seconds, so that actors are out of step; no"
        " effect in serial mode and in benchmarks",
        ge=0,
    )
    decorrelate_envs_on_one_worker: bool = flag(
        False,
        "env i of an actor begins with i x rollout random steps, which are not learned from; no effect with vector "
        "envs and TensorEnvs",
    )
    info_action_mask: Literal["auto", "on", "off"] = flag(
        "auto",
        'whether action masks are read from info["action_mask"]; auto: if the first info has one and observations have '
        "none",
    )
    env_frameskip: int = flag(
        1, "frames per env step; passed to environments that take it (Atari), otherwise only used to count frames", ge=1
    )
    set_workers_cpu_affinity: bool = flag(True, "pin each actor to a core if there are as many actors as cores")
    force_envs_single_thread: bool = flag(False, "limit the native thread pools of environments to one thread")
    default_niceness: int = flag(
        0,
        "niceness of the learner; policy workers add 1, actors and evaluators 2, or 7 where they act while the learner "
        "trains",
        ge=-20,
        le=12,
    )
    actor_worker_gpus: tuple[int, ...] = flag(
        (), "GPUs that actors see, one each in turn, for environments that simulate or render there", ge=0
    )
    max_workers_starting: int = flag(
        0, "actors that make and reset their environments at the same time; 0: twice the cores, at least 8", ge=0
    )
    reset_timeout_seconds: float = flag(
        120.0,
        "time limit for making an env and for one reset; an actor or evaluator that exceeds it in a reset is replaced",
        gt=0,
    )
    step_timeout_seconds: float = flag(
        120.0,
        "time limit for one step of all environments of a split, and for one forward pass of a policy worker; a "
        "process that exceeds it is replaced; 0: no limit",
        ge=0,
    )
    max_worker_restarts: int = flag(
        20,
        "actors, policy workers and evaluators replaced per session after a kill, crash, hang; 0: the first ends the "
        "run",
        ge=0,
    )
    remote_actors_port: int = flag(
        0,
        "TCP port at which actors of other machines join the run (sfactory.remote_actors, docs/scaling.md); 0: none",
        ge=0,
        le=65535,
    )
    remote_actors_host: str = flag(
        "127.0.0.1", "IPv4 address of this machine, or its name, at which remote actors join; 0.0.0.0: any"
    )
    remote_actors_token_file: str = flag(
        "", "file with the secret that remote actors must have, too: a line of 32 characters or more", path=True
    )
    max_env_restarts: int = flag(
        20,
        "how often, in one session, an actor recreates environments that raised, over all its environments; after "
        "that, or with 0 at once, the next failure ends the run; faults of any kind, invalid data, too, end it as well "
        "once that many episodes in a row (at least 20, and one per env) ended so and none finished; 1000 env steps "
        "for each of these without a fault start that count again",
        ge=0,
    )
    max_bad_env_data: float = flag(
        0.01,
        "share of an actor's steps that may give NaN, infinity, or observations of a wrong shape or dtype; such steps"
        " are not learned from; the run ends if there are more, and at least 20; whatever the share, also if faults "
        "alone end episodes, see max_env_restarts",
        ge=0,
        le=1,
    )


@dataclass(frozen=True)
class WrapperConfig:
    """What is wrapped around each environment, from the inside in the order of these flags."""

    wrapper: tuple[str, ...] = flag(
        (),
        "wrappers of your own, the innermost first, each as module:function or module:Class: it gets an environment as "
        "it was made (of one agent, of many, or a vector environment) and returns one",
    )
    sticky_actions: float = flag(
        0.0,
        "probability that the environment's last action is taken once more instead of the chosen one (Machado et al. "
        "2018), drawn for each step that action_repeat makes",
        ge=0,
        lt=1,
    )
    action_repeat: int = flag(
        1,
        "steps of the environment with each action, whose rewards are added up; each counts as env_frameskip frames; "
        "environments that take env_frameskip are refused",
        ge=1,
    )
    max_episode_steps: int = flag(
        0,
        "env steps after which an episode is truncated, instead of after those that Gymnasium has registered for it; "
        "0: the environment's own limit",
        ge=0,
    )
    obs_grey: bool = flag(False, "images of three colors become grey ones, without channels (needs OpenCV)")
    obs_resize: tuple[int, ...] = flag((), "height and width that images are resized to (needs OpenCV)", gt=0)
    env_framestack: int = flag(
        1, "Box observations become stacks [N, ...] of the last N ones, the newest last, as Gymnasium stacks them", ge=1
    )
    flatten_obs: bool = flag(False, "all observations become one vector, as Gymnasium flattens them")

    @property
    def used(self) -> dict[str, object]:
        """The flags that wrap something, with their values, in the order of the wrappers."""
        values = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {field.name: value for field, value in values if value != field.default}
