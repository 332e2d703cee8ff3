"""Plans a run before any process starts: sizes, devices, cores, memory, and whether ``--policy_mapping`` works."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np
import torch

from sfactory.actor.policy_assignment import SOLE_AGENT, Mapping, custom_assignment
from sfactory.actor.reward_shaping import RewardShaping
from sfactory.config.env_families import NUM_ENVS
from sfactory.config.flags import assigned, config_with
from sfactory.config.import_strings import Unresolved, find_callable
from sfactory.config.population_rules import decided, flag_of_splits, lack_of_splits
from sfactory.config.resolve import Resolved, fitted_to_agents, with_critic_group
from sfactory.config.run_rules import rounds_misfit
from sfactory.config.saved_config import BY_ENV
from sfactory.config.schema import Config, SamplingConfig
from sfactory.config.task_defaults import with_gpu_defaults, with_task_defaults
from sfactory.env.factory import EnvFactory
from sfactory.env.vector import SAY_RESETS, UNSAID_RESETS
from sfactory.errors import ConfigError, ResourceError, clean, named, raised_at
from sfactory.layout import ActingCost, Inference, Layout, choose_inference, num_evaluators
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.custom import own_parts
from sfactory.model.distributions import require_discrete
from sfactory.model.flat_state import flat_bytes
from sfactory.model.normalizer import UnknownKeys
from sfactory.model.precision import torch_dtype, warn_of_emulation
from sfactory.model.rnd import Rnd
from sfactory.model.torch_state import OwnTorchState
from sfactory.planning.agent_policies import kinds_of_policies, with_policies_of_kinds
from sfactory.planning.env_probe import Probed
from sfactory.planning.gpu_memory import require_gpu_memory
from sfactory.planning.network_check import checked_model
from sfactory.planning.resident_rules import fitted_to_tensors
from sfactory.planning.step_cost import forward_us
from sfactory.process.signals import stdout_to_stderr
from sfactory.ranks.place import ONE_RANK, Place
from sfactory.remote.joining import require_joining
from sfactory.shared.memory import planned_bytes
from sfactory.shared.trajectories import RnnStates, trajectory_fields
from sfactory.spec import EnvSpec
from sfactory.system.cores import Cores
from sfactory.system.gpu import require_gpu, why_unused
from sfactory.system.resources import (
    pinnable,
    process_memory,
    require_cores,
    require_handles,
    require_memory,
    warn_of_few_cores,
    warn_of_niceness,
)
from sfactory.tensor_spec import describe

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before processes start.

    weight_shapes: by name of the weight. reading: how the network reads each observation, and its size;
    one sentence each.
    """

    spec: EnvSpec
    layout: Layout
    device: str
    cores: Cores
    weight_bytes: int
    why_inference: str = ""
    reward_shaping: RewardShaping | None = None
    weight_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    reading: tuple[str, ...] = ()


def choose_device(wanted: str, learner_devices: str = "") -> str:
    """Torch's name of the device; raises ConfigError if a GPU is wanted and torch does not find it.

    learner_devices: the flag that ``wanted`` comes from, if it has a value.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return "cpu"
    given, instead = f"--device={wanted}", "use --device=cpu or --device=auto"
    if learner_devices:
        given, instead = f"--learner_devices={learner_devices}", "use --learner_devices=cpu, or leave it out"
    index = int(wanted.partition(":")[2] or 0)
    require_gpu(index, given, instead)
    return f"cuda:{index}"


def device_of(policy: int, device: str) -> str:
    """Where ``policy`` learns and acts: policies are distributed over the GPUs in turn, beginning with ``device``."""
    if device == "cpu":
        return device
    return f"cuda:{(torch.device(device).index + policy) % torch.cuda.device_count()}"


_MATTERS = 2**28
_BYTES_PER_THREAD = 2**19
_TIMED_ROWS = 16  # at least, in the forward pass that is timed: actors with fewer have so many more cores for them


def _planned_bytes(spec: EnvSpec, layout: Layout, weight_bytes: int, replayed: int) -> int:
    """Memory for slots, states, staging areas, ``replayed`` trajectories, weights, and weights under evaluation."""
    slots = planned_bytes(trajectory_fields(spec, layout)) if layout.num_slots else 0
    one_each = replace(layout, slots_per_split=layout.slots_per_split or 1)
    per_row = planned_bytes(trajectory_fields(spec, one_each)) / (one_each.num_slots * layout.rows)
    kept = int(per_row * (layout.dataset_rows * layout.datasets + replayed)) * layout.num_policies
    return slots + kept + 2 * weight_bytes * layout.shared_weights + RnnStates.spec(layout).nbytes


def activation_bytes(model: ActorCritic, spec: EnvSpec) -> int:
    """Bytes of one row that a forward pass of ``model`` keeps for the backward pass."""
    own = {weight.untyped_storage()._cdata for weight in model.state_dict(keep_vars=True).values()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    rows = 8
    device = next(model.parameters()).device
    with torch.device(device), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        obs = {key: torch.zeros((rows, *leaf.shape), dtype=torch_dtype(leaf.dtype)) for key, leaf in spec.obs}
        model.forward(obs, model.fresh_state(rows))
    return sum(storage.nbytes() for storage in kept.values()) // rows


def _useful_threads(update_bytes: int) -> int:
    """How many math threads make a learner on the CPU faster: with too little work for each they wait for one another.

    Measured with two threads: 1.0 to 1.2 times as fast with less than 512 KiB of activations each, 1.5 to 2.0 times
    as fast with more.
    """
    return max(1, update_bytes // _BYTES_PER_THREAD)


def _learner_bytes(spec: EnvSpec, rows: int, update_bytes: int, policies: int) -> int:
    """Memory that an update of ``rows`` takes on the CPU; 0 where observations are too small for it to matter."""
    if 4 * rows * sum(math.prod(leaf.shape) for _, leaf in spec.obs) < _MATTERS:
        return 0
    # Measured over images: gradients take half as much again.
    return 3 * update_bytes * policies // 2


def _process_bytes(config: Config, layout: Layout, weight_bytes: int, device: str) -> int:
    """Memory of the processes' own, with their copies of the weights: of a learner weights, gradients and moments."""
    policies, others = layout.num_policies, len(layout.process_names) - layout.num_policies
    acting = layout.num_actors * policies if layout.inference == "local" else policies * layout.policy_workers
    acting *= layout.opponents + 2 if layout.opponents else 1
    copies = layout.evaluators * layout.evaluated + (acting if device == "cpu" or layout.inference == "local" else 0)
    copies += 3 * policies if device == "cpu" else 0
    own = process_memory(0, 0) if config.run.serial_mode else process_memory(policies, others)
    return own + copies * weight_bytes


def _blueprint(config: Config, spec: EnvSpec) -> ActorCritic:
    """The model, without memory for its weights if all is built in; raises ConfigError for flags that do not fit."""
    if config.algo.exploration_loss == "symmetric_kl":
        try:
            require_discrete(spec.actions)
        except ValueError as error:
            raise ConfigError([f"--exploration_loss=symmetric_kl: {error} (--exploration_loss=entropy)"]) from None
    try:
        with OwnTorchState():
            if own_parts(config.model):  # they may not work without memory
                return checked_model(spec, config.model)
            with torch.device("meta"):
                model = ActorCritic(spec, config.model)
            return _reserved(model)
    except UnknownKeys as error:
        raise ConfigError([f"{assigned('normalize_input_keys', config.model.normalize_input_keys)}: {error}"]) from None


def _reserved(model: ActorCritic) -> ActorCritic:
    """``model`` with weights on the CPU; raises ResourceError if there are too many for any memory."""
    size = flat_bytes(model)
    try:
        model._apply(_unwritten)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ResourceError(
            f"the network has {size / 2**20:,.0f} MiB of weights, for which there is no memory; make it smaller "
            f"(--encoder_mlp_layers, --rnn_size): {clean(str(error))}"
        ) from error
    return model


def _unwritten(tensor: torch.Tensor) -> torch.Tensor:
    """In place of a weight on the device "meta" one on the CPU, which takes no memory until it is written to.

    A forward pass on "meta" would import torch's compiler, which takes nearly as long as torch itself. Buffers, which
    may be indices, are zeros.
    """
    if isinstance(tensor, torch.nn.Parameter):
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def fitted_to_env(resolved: Resolved, probed: Probed, device: str) -> Resolved:
    """``resolved`` with the defaults that depend on the env and on ``device``, which ``choose_device`` has chosen;
    raises ConfigError or EnvError as ``plan_sizes`` does."""
    _require_no_number_of_envs(resolved)
    if resolved.config.sampling.info_action_mask == "auto":
        found = "on" if probed.info_action_mask else "off"
        resolved = resolved.replaced({"info_action_mask": found}, BY_ENV)
    resolved = with_policies_of_kinds(resolved, probed.spec)
    has_groups = probed.spec.for_model(resolved.config.model).has_critic_group
    resolved = with_critic_group(resolved, has_groups)
    config = resolved.config
    kind, on_gpu = probed.spec.for_model(config.model).kind, device != "cpu"
    if resolved.awaits_kind:
        resolved = with_task_defaults(resolved, kind, probed.step_us, on_gpu, probed.spec.num_agents)
    resolved = fitted_to_agents(resolved, probed.spec.num_agents)
    if probed.makes_tensors:
        resolved = fitted_to_tensors(resolved)
    elif "seed" in config.run.env_kwargs:  # vector makers refuse it, see EnvFactory.vector
        seed = assigned("env_kwargs", {"seed": config.run.env_kwargs["seed"]})
        warning = f"{seed}: all envs get this seed, and are the same if they draw from it alone; leave it out: "
        own = "--seed gives each env one of its own, in reset"
        resolved = replace(resolved, warnings=[*resolved.warnings, warning + own])
    if probed.resets_unsaid:
        warning = f"--env={config.run.env}: {UNSAID_RESETS}; {SAY_RESETS}"
        resolved = replace(resolved, warnings=[*resolved.warnings, warning])
    return with_gpu_defaults(resolved, kind) if on_gpu else resolved


def _require_no_number_of_envs(resolved: Resolved) -> None:
    """Raise ConfigError if arguments of a new run's env give a number of envs; earlier runs ignored it, and go on."""
    run, earlier = resolved.config.run, cast(dict[str, object], resolved.saved.values.get("env_kwargs", {}))
    if NUM_ENVS in run.env_kwargs and NUM_ENVS not in earlier and EnvFactory(run.env).makes_vectors:
        where = f"leave {NUM_ENVS} out of its arguments (--env_kwargs, or those of a functools.partial)"
        raise ConfigError([f"--env={run.env}: {where}: --num_envs_per_worker and --worker_num_splits decide"])


def steps_are_timed(config: Config) -> bool:
    """Whether ``plan_run`` needs the time of an env step; raises ConfigError as ``choose_device`` does."""
    if config.sampling.inference != "auto" or config.run.serial_mode:
        return False  # serial mode has to be repeatable, and a measurement is not
    return choose_device(config.run.device) != "cpu"


def _wanted_inference(sampling: SamplingConfig) -> Literal["central", "local", "auto"]:
    """Policy workers of a number that was asked for are there; remote actors, without others, act by themselves."""
    if not sampling.num_workers:
        return "local"
    return "central" if sampling.policy_workers_per_policy > 1 else sampling.inference


def plan_sizes(
    config: Config, spec: EnvSpec, env_step_us: float | None = None, resident: bool = False, place: Place = ONE_RANK
) -> Plan:
    """Decide sizes and devices; raises ConfigError or ResourceError. env_step_us: as in ``Probed``, if timed.
    resident: the env is a TensorEnv."""
    sampling, cost, device = config.sampling, None, choose_device(config.run.device)
    kinds = kinds_of_policies(config, spec)
    parts = [spec.part(kind) for kind in dict.fromkeys(kinds or ("",))]
    models = [_blueprint(config, part) for part in parts]
    model, largest = max(zip(models, parts, strict=True), key=lambda each: flat_bytes(each[0]))
    if len({each.state_size for each in models}) > 1:
        raise ConfigError(["--model: its state_size must be the same for all kinds of agents"])
    if env_step_us is not None:
        rows = max(_TIMED_ROWS, sampling.num_envs_per_worker * spec.num_agents)
        cost = ActingCost(env_step_us, forward_us(spec, config.model, rows))
    inference, why = choose_inference(_wanted_inference(sampling), device != "cpu", cost)
    no_evaluation = config.benchmark.benchmark or config.run.serial_mode
    evaluators = 0 if no_evaluation else num_evaluators(config.evaluation)
    _require_fit(config, spec, inference)
    layout = Layout.plan(
        sampling, config.learner, inference, model.state_size, evaluators, config.population, spec.num_agents, resident
    )
    if config.algo.rnd:
        _require_own_envs(layout)
        with torch.device("meta"):  # built-in encoders, which have to fit also where the policy has one of the user's
            Rnd(model.spec.obs, 1, config.model)
    layout = replace(layout, kinds=kinds, rank=place.rank, world=place.world)
    cores, weight_bytes = Cores.available(), flat_bytes(model)
    minibatch = config.learner.microbatch_size or config.learner.batch_size  # rows of one backward pass
    update_bytes = minibatch * activation_bytes(model, largest)
    # Of one network: where there are several, learners refuse weights that do not fit.
    weight_shapes = {} if kinds else {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if sampling.set_workers_cpu_affinity and not config.run.serial_mode:  # otherwise no process is pinned
        require_cores(config.learner.learner_cores, cores.count)
        cores = cores.keeping(config.learner.learner_cores)
    alone = layout.all_wait and device == "cpu"  # on a GPU that was not measured
    least = cores.count // 2 if layout.slots_until_trained else 1  # when it trains, most actors wait
    cores = replace(cores, learner_use=_useful_threads(update_bytes), learner_alone=alone, learner_least=least)
    learning = _learner_bytes(spec, minibatch, update_bytes, layout.num_policies) if device == "cpu" else 0
    planned = _planned_bytes(spec, layout, weight_bytes, config.learner.replay_slots)
    require_memory(planned, learning, _process_bytes(config, layout, weight_bytes, device))
    require_gpu_memory(config, layout, largest, device, weight_bytes, update_bytes)
    reading = []
    for each, part in zip(models, parts, strict=True):
        reading += [describe(path, leaf, each.normalizes(path), part.reads_apart) for path, leaf in part.obs]
        reading.append(f"the network has {sum(weight.numel() for weight in each.parameters()):,} parameters")
    reading += [f"observation {key!r} is not read; --ignore_obs_keys= reads it" for key in config.model.ignore_obs_keys]
    reading += [f"policy {policy} plays agents with the spaces of {kind}" for policy, kind in enumerate(kinds)]
    return Plan(spec, layout, device, cores, weight_bytes, why, weight_shapes=weight_shapes, reading=tuple(reading))


def _require_fit(config: Config, spec: EnvSpec, inference: Inference) -> None:
    """Raise ConfigError for flags that do not fit the env's agents, or ``inference``, now that both are known."""
    sampling, population = config.sampling, config.population
    if population.opponent_pool and spec.num_agents < 2:
        named = assigned("opponent_pool", population.opponent_pool)
        raise ConfigError([f"{named}: the environment has one agent, and so no opponent: leave it out"])
    if misfit := rounds_misfit(config, spec.num_agents):
        raise ConfigError([f"{assigned('async_rl', sampling.async_rl)}: {misfit}"])
    if spec.num_agents > 1 and config.algo.rnd:
        raise ConfigError(
            ["--rnd=True: needs an env of one agent: of several, some may have no next observation: leave it out"]
        )
    if spec.in_turns and config.algo.use_cpc:
        raise ConfigError(
            ["--use_cpc=True: it predicts the next step of an agent, and the agents of the env act in turn"]
        )
    if spec.in_turns and sampling.rollout < spec.num_agents:
        raise ConfigError(
            [
                f"{assigned('rollout', sampling.rollout)}: the {spec.num_agents} agents of the env act in turn, so an "
                "agent's next turn, which its last one is learned from, comes only in another rollout; use "
                f"--rollout={8 * spec.num_agents} or more"
            ]
        )
    if lack := lack_of_splits(config_with(config, decided(config, inference, spec.num_agents))):
        raise ConfigError([f"{assigned('policy_mapping', population.policy_mapping)}: {lack}"])


def _require_own_envs(layout: Layout) -> None:
    """Raise ConfigError where rows have steps of several policies: RND also learns the observations of steps that are
    not the policy's, since after an end they are the last ones of its episodes."""
    if layout.num_policies > 1 and layout.mapping != "split":
        of_actor = flag_of_splits(layout.inference)
        raise ConfigError(
            [
                "--rnd=True: where policies take turns in an env, the bonus of each would fall by what the others see: "
                f"use --policy_mapping=split and at least {layout.num_policies} splits (--num_workers, --{of_actor}), "
                "or add --rnd=False"
            ]
        )


def plan_run(
    config: Config, spec: EnvSpec, env_step_us: float | None = None, resident: bool = False, place: Place = ONE_RANK
) -> Plan:
    """As ``plan_sizes``; also check the machine's resources, with warnings for those that a run can do without."""
    plan = plan_sizes(config, spec, env_step_us, resident, place)
    warn_of_emulation(config.model, plan.device)
    if config.run.device == "auto" and plan.device == "cpu" and (why := why_unused()):
        _log.warning("torch cannot use the GPU of this machine, so the CPU computes: %s", why)
    if config.run.serial_mode:  # it has no other processes
        return plan
    require_joining(config.sampling)
    children = len(plan.layout.process_names)
    require_handles(children, plan.layout.shared_weights)
    if not place.rank:
        warn_of_few_cores(plan.cores, children + 1, place.world)
    warn_of_niceness(config.sampling.default_niceness)
    return replace(plan, cores=pinnable(plan.cores)) if config.sampling.set_workers_cpu_affinity else plan


def require_mapping(config: Config, plan: Plan) -> None:
    """Raise ConfigError or EnvError unless ``--policy_mapping`` returns policies for the first episode of every env."""
    layout, name = plan.layout, config.population.policy_mapping
    if layout.num_policies == 1 or layout.mapping != "function":
        return
    flag = assigned("policy_mapping", name)
    try:
        with stdout_to_stderr():  # modules may print when they are imported
            function = cast(Mapping, find_callable(name))
    except Unresolved as error:
        raise ConfigError([f"{flag}: {error}"]) from error.__cause__
    draw = custom_assignment(name, function, plan.spec.agents or (SOLE_AGENT,), 0, layout.num_policies)
    before = np.zeros(layout.agents, np.int16)
    for env in range(layout.num_splits * layout.envs):
        try:
            draw(env, 0, before)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            form = "it is called as f(agent, episode, env) and returns the number of a policy"
            found = f"{flag} raised {named(error)}{raised_at(error)} for env {env}, episode 0; {form}"
            raise ConfigError([found]) from error
