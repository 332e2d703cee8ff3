"""The first lines of a run: what it trains, in which processes, on which device, and what most runs do not use."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import starmap

import torch

from sfactory.config.flags import assigned
from sfactory.config.schema import Config
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.model.custom import own_parts
from sfactory.model.precision import times_convolutions
from sfactory.planning.plan import Plan
from sfactory.ranks.place import Place
from sfactory.system.operating_system import LINUX, NAME

_log = logging.getLogger(__name__)


def log_first_lines(config: Config, plan: Plan, resumed: Resumed | None, run_dir: RunDir, place: Place) -> None:
    """Log what the run trains, with what, and from where it goes on."""
    layout = plan.layout
    apart = f" with a mean of weights every {updates} updates" if (updates := config.learner.sync_every) > 1 else ""
    policies = f"{place.world} ranks{apart}, each with " if place.world > 1 else ""
    if layout.num_policies > 1:
        pbt = ", population-based training" if config.population.with_pbt else ""
        policies = f"{layout.num_policies} policies, played by {layout.mapping}{pbt}, limits apply to each; "
    agents = f" x {layout.agents} agents" if layout.agents > 1 else ""
    actors = (
        f"{layout.local_actors} actors x {layout.splits * layout.envs} envs{agents}, {where_computed(config, plan)}"
    )
    if layout.resident:
        actors = f"1 TensorEnv of {layout.envs} envs, which collects and learns in turn, on {plan.device}"
    _log.info(
        "%s in %s: %s%s, batch of %d steps",
        *(config.run.env, run_dir.path, policies, actors, config.learner.batch_size),
    )
    for sentence in beside_the_usual(config, place):
        _log.info("%s", sentence)
    if resumed is not None:
        kind = config.checkpoint.load_checkpoint_kind
        which = "" if kind == "latest" else f", from the {kind} checkpoint"
        _log.info("resumed at %d env steps, update %d%s", resumed.env_steps, resumed.updates, which)


def where_computed(config: Config, plan: Plan) -> str:
    """Where actions are chosen and where is learned; on a GPU also how."""
    inference = plan.layout.inference
    if plan.device == "cpu":
        return f"{inference} inference on cpu"
    how = {"cuda_graphs": config.model.cuda_graphs, "amp": config.model.amp}
    what = "central inference" if inference == "central" else "local inference on cpu, learning"
    images = any(leaf.is_image for _, leaf in plan.spec.obs)
    order = ", images channels-last" if images else ""
    timed = ", cudnn.benchmark" if images and times_convolutions(config, torch.device(plan.device)) else ""
    return f"{what} on {plan.device} with {' '.join(starmap(assigned, how.items()))}{order}{timed}"


def beside_the_usual(config: Config, place: Place) -> Iterator[str]:
    """Sentences on what most runs do not use: ranks, wrappers, own networks, a pool of opponents, a bonus."""
    if (updates := config.learner.sync_every) > 1 and place.world == 1:
        yield f"--sync_every={updates} has no effect: this run is one rank (docs/scaling.md)"
    own = own_parts(config.model)
    for part, name in own.items():
        yield f"{'the whole network' if part == 'model' else f'the {part} of the network'} is {name}"
    if config.model.amp != "off" and own.keys() - {"core"}:
        yield (
            f"{assigned('amp', config.model.amp)} is for built-in layers: networks of your own compute in the formats "
            "that they are written in (torch.autocast), and a GPU multiplies their float32 matrices as TF32"
        )
    if used := config.wrappers.used:
        yield f"the environment is wrapped, from the inside: {', '.join(starmap(assigned, used.items()))}"
    if not LINUX:
        yield f"all is in one process (--serial_mode=True): the processes of a run need Linux, and this is {NAME}"
    population, algo = config.population, config.algo
    if population.opponent_pool:
        yield (
            f"in {100 * population.opponent_share:g}% of episodes the opponents are drawn from the last "
            f"{population.opponent_pool} versions of the policy, one for every "
            f"{population.opponent_snapshot_env_steps} env steps"
        )
    if population.pbt_dir and population.with_pbt:
        yield f"member {population.pbt_member} of the population in {population.pbt_dir}"
    if algo.rnd:
        yield f"new observations earn a bonus: --rnd_coeff={algo.rnd_coeff:g}, not part of any return that is shown"
