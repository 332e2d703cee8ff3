"""Room: what must hold between flags of the objective. In: a ``Config``. Out: ``OBJECTIVE_RULES``."""

from __future__ import annotations

from sfactory.config.rule import Rule, idle_unless
from sfactory.config.schedule_text import POINTS_FORM, parse_points
from sfactory.config.schema import Config

_OF_VTRACE = (
    "vtrace_rho",
    "vtrace_pg_rho",
    "vtrace_c",
    "vtrace_lambda",
    "vtrace_adv_weighting",
    "vtrace_drop_last_ts",
)


def points_problem(text: str) -> str | None:
    """What is wrong with the points of a schedule that may be left empty."""
    try:
        if text:
            parse_points(text)
    except ValueError as error:
        return f"must be {POINTS_FORM}: {error}"
    return None


def _exploration_has_points(config: Config) -> str | None:
    return points_problem(config.algo.exploration_loss_coeff_schedule)


def _a_dropped_step_leaves_others(config: Config) -> str | None:
    if not config.algo.vtrace_drop_last_ts or config.sampling.rollout >= 2:
        return None
    return "with --rollout=1 the last step is the only one, and nothing would be learned: use --rollout=2 or more"


def _divergence_has_a_price(config: Config) -> str | None:
    if not config.algo.kl_target or config.algo.kl_loss_coeff > 0:
        return None
    return "adapts kl_loss_coeff, which is 0 and would stay so: say where it starts, for example --kl_loss_coeff=0.2"


def _targets_clip_ratios(config: Config) -> str | None:
    if not config.algo.use_target_net or config.algo.policy_loss == "ppo_clip":
        return None
    return "the target network is one side of a clipped ratio: needs --policy_loss=ppo_clip"


def _targets_give_importance_weights(config: Config) -> str | None:
    if not config.algo.use_target_net or config.algo.with_vtrace:
        return None
    return "the target network gives importance weights to V-trace: needs --with_vtrace=True"


def _norms_belong_to_their_weights(config: Config) -> str | None:
    algo = config.algo
    if not algo.use_target_net or algo.target_tau == 1.0 or not config.model.use_spectral_norm:
        return None
    return (
        "a mean of two networks has other spectral norms than either: use --target_tau=1.0 with "
        "--use_spectral_norm=True"
    )


OBJECTIVE_RULES = (
    Rule(("exploration_loss_coeff_schedule",), _exploration_has_points),
    Rule(("vtrace_drop_last_ts", "rollout"), _a_dropped_step_leaves_others),
    Rule(("kl_target", "kl_loss_coeff"), _divergence_has_a_price),
    Rule(("use_target_net", "policy_loss"), _targets_clip_ratios),
    Rule(("use_target_net", "with_vtrace"), _targets_give_importance_weights),
    Rule(("target_tau", "use_spectral_norm"), _norms_belong_to_their_weights),
    *idle_unless(_OF_VTRACE, ("with_vtrace",), lambda config: config.algo.with_vtrace, "--with_vtrace=True"),
    *idle_unless(
        ("target_update_interval", "target_tau", "target_worker_clip"),
        ("use_target_net",),
        lambda config: config.algo.use_target_net,
        "--use_target_net=True",
    ),
    *idle_unless(
        ("exploration_loss_coeff_schedule",),
        ("exploration_loss",),
        lambda config: config.algo.exploration_loss != "none",
        "--exploration_loss=entropy",
    ),
)
