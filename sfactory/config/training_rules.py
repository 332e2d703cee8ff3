"""Rules over flags of the learner, the loss and the optimizer."""

from __future__ import annotations

import importlib.util
import math

from sfactory.config.flags import did_you_mean, value_of
from sfactory.config.points import DECAY_FORM, LINEAR_DECAY, POINTS_FORM, decay_error, decays, points_error
from sfactory.config.rule import (
    WAITING,
    Rule,
    at_most,
    excludes,
    idle_if,
    idle_unless,
    is_default,
    multiple_of,
    needs,
    refuse,
    refused_where_collection_waits,
)
from sfactory.config.schema import AUTO, BY_RANK, CORE_INPUTS, LAYOUTS, PARTS, Config, keys_and_layouts
from sfactory.config.trust import NETWORKS
from sfactory.packages import install_command

KL_ADAPTIVE = ("kl_adaptive_minibatch", "kl_adaptive_epoch")
LR_WORDS = ("constant", LINEAR_DECAY, *KL_ADAPTIVE)
# What training in a thread of its own depends on.
_BACKGROUND = ("train_in_background_thread", *WAITING, "serial_mode")
# Of larger numbers the divisors between this and its counterpart are not searched.
_LARGEST_DIVISOR = 10**6


def _one_at_a_time(config: Config) -> str:
    """The settings that make the learner hold one dataset at a time, as text; "" if none does."""
    learner = config.learner
    why = (
        ("serial_mode=True", config.run.serial_mode),
        ("async_rl=False", not config.sampling.async_rl),
        ("num_batches_to_accumulate=0", learner.num_batches_to_accumulate == 0),
        ("train_in_background_thread=False", not learner.train_in_background_thread),
    )
    return " and ".join(text for text, holds in why if holds)


def _too_few_datasets(config: Config, what: str, needed: int) -> str | None:
    """The advice where fewer than the ``needed`` datasets may be held; ``what`` names the users of datasets."""
    if config.learner.num_batches_to_accumulate >= needed:
        return None
    return f"{what} take {needed} datasets: use --num_batches_to_accumulate={needed} or more"


def _ring_has_datasets(config: Config) -> str | None:
    ring, batchers = config.learner.minibatch_ring_size, config.learner.num_batchers
    if ring == 1:
        return None
    if why := _one_at_a_time(config):
        return f"must be 1 with {why}: the learner then holds one dataset at a time"
    return _too_few_datasets(config, "the ring and one in the making by each of num_batchers", ring + batchers)


def _batchers_have_datasets(config: Config) -> str | None:
    ring, batchers = config.learner.minibatch_ring_size, config.learner.num_batchers
    if batchers == 1:
        return None
    if why := _one_at_a_time(config):
        return f"must be 1 with {why}: the learner then assembles one dataset at a time"
    if ring > 1:
        return None  # _ring_has_datasets reports a ring that has too few
    return _too_few_datasets(config, "the one learned from and one in the making by each", 1 + batchers)


def _dropped_datasets_wait(config: Config) -> str | None:
    learner = config.learner
    if learner.learner_queue_policy == "block":
        return None
    if why := _one_at_a_time(config):
        return f"with {why} no dataset waits that could be dropped: leave one of them out"
    what = "those learned from, one in the making by each of num_batchers, and one that waits"
    return _too_few_datasets(config, what, learner.minibatch_ring_size + learner.num_batchers + 1)


def _first_datasets_get_fewer_passes(config: Config) -> str | None:
    if config.learner.ring_warmup == 0 or not (why := _one_at_a_time(config)):
        return None
    return (
        f"has no effect with {why}, as every dataset then gets all num_epochs passes: leave it out, or add "
        "--serial_mode=False --async_rl=True --num_batches_to_accumulate=2 --train_in_background_thread=True"
    )


def _datasets_hold_new_rows(config: Config) -> str | None:
    learner, rollout = config.learner, config.sampling.rollout
    rows = learner.batch_size // rollout * learner.num_batches_per_epoch
    # Another rule reports a batch that is not whole rollouts.
    if not learner.replay_proportion or learner.batch_size % rollout or learner.replay_proportion <= rows - 1:
        return None
    return (
        f"a dataset has {rows} rows (batch_size / rollout x num_batches_per_epoch), and one new row with its replayed "
        f"ones takes {1 + math.ceil(learner.replay_proportion)}: make datasets larger or this smaller"
    )


def _microbatches_fill_a_minibatch(config: Config) -> str | None:
    size, batch, rollout = config.learner.microbatch_size, config.learner.batch_size, config.sampling.rollout
    if size == 0 or batch % rollout:
        return None
    whole = config.algo.with_vtrace or config.model.use_rnn
    unit = rollout if whole else 1
    if size < batch and batch % size == 0 and size % unit == 0:
        return None
    rows = " and a multiple of rollout, since V-trace and memory keep rollouts whole," if whole else ""
    must = f"must be a divisor of batch_size ({batch}){rows} and less than it"
    legal = sorted(unit * divisor for divisor in _divisors(batch // unit) if unit * divisor < batch)
    if not legal:
        return f"{must}, and there is none: leave it at 0"
    nearest = [each for each in legal if each < size][-1:] + [each for each in legal if each > size][:1]
    return f"{must}: nearest {'is' if len(nearest) == 1 else 'are'} {' and '.join(map(str, nearest))}"


def _divisors(number: int) -> set[int]:
    small = [each for each in range(1, min(math.isqrt(number), _LARGEST_DIVISOR) + 1) if number % each == 0]
    return {*small, *(number // each for each in small)}


LEARNING_RULES = (
    Rule(("minibatch_ring_size", "num_batchers", *_BACKGROUND), _ring_has_datasets),
    Rule(("num_batchers", "minibatch_ring_size", *_BACKGROUND), _batchers_have_datasets),
    Rule(("learner_queue_policy", "minibatch_ring_size", "num_batchers", *_BACKGROUND), _dropped_datasets_wait),
    Rule(("replay_proportion", "batch_size", "rollout", "num_batches_per_epoch"), _datasets_hold_new_rows),
    Rule(("microbatch_size", "batch_size", "rollout", "with_vtrace", "use_rnn"), _microbatches_fill_a_minibatch),
    excludes("torch_compile", "microbatch_size", "parts of a minibatch are not compiled"),
    excludes("torch_compile", "with_pbt", "each value that changes would be compiled for 20 s"),
    refuse(
        ("torch_compile", "use_rnn", "rnn_type"),
        lambda config: (
            config.learner.torch_compile and config.model.use_rnn and config.model.rnn_type in ("gru", "lstm")
        ),
        "torch compiles the steps of a {rnn_type} to other numbers: leave it out, or take --rnn_type=mingru",
    ),
    refuse(
        ("num_batchers", "num_workers"),
        lambda config: config.learner.num_batchers > max(1, config.sampling.num_workers),
        "must be at most num_workers ({num_workers}): batchers assemble the workers' trajectories",
    ),
    Rule(("ring_warmup", *_BACKGROUND), _first_datasets_get_fewer_passes, idle=True),
    at_most("ring_warmup", "num_epochs", ", which the number of passes rises to"),
    needs("replay_proportion", "replay_slots", "there are no trajectories to replay", value=100),
    needs("replay_proportion", "with_vtrace", "replayed steps come from old policies, which only V-trace corrects"),
    refused_where_collection_waits("replay_proportion", "it learns from new steps alone: leave one of them out"),
    refused_where_collection_waits("publish_interval", "it waits for the weights: must be 1"),
    *idle_unless(("ring_nonblocking",), "minibatch_ring_size", lambda size: size > 1, 2),
    *idle_unless(("replay_slots", "replay_include_new", "max_replay_lag"), "replay_proportion", value=1),
    *idle_unless(("early_stop_kl",), "num_epochs", lambda epochs: epochs > 1, "2 or more"),
    *idle_unless(("sync_momentum",), "sync_every", lambda updates: updates > 1, 20),
    *idle_unless(("learner_cores",), "set_workers_cpu_affinity"),
)


def _built_in(name: str, part: str) -> Rule:
    """A rule that ``name``, a flag of the built-in ``part``, breaks if another network takes its place."""
    reads = ("rnd",) if part == "encoder" else ()  # its networks are built-in encoders in any case

    def find(config: Config) -> str | None:
        own = next((each for each in (part, "model") if getattr(config.model, each)), None)
        if own is None or is_default(config, name) or (reads and config.algo.rnd):
            return None
        named = getattr(config.model, own)
        return f"has no effect with --{own}={named}: leave it out, or add --{own}= for the built-in one"

    return Rule(tuple(dict.fromkeys((name, part, "model", *reads))), find, idle=True)


def _two_networks(name: str) -> Rule:
    """A rule that ``name``, keys of the actor or the critic alone, breaks where there is one network for both."""

    def find(config: Config) -> str | None:
        model = config.model
        if getattr(model, name) in ((), AUTO):
            return None
        if model.model:
            return f"a whole model is actor and critic in one: leave it out, or leave --model={model.model} out"
        if model.actor_critic_share_weights:
            return "one network for both reads the same observations: use --actor_critic_share_weights=False"
        return None

    return Rule((name, "model", "actor_critic_share_weights"), find)


def _only(flag: str, words: tuple[str, ...], what: str) -> Rule:
    """A rule that a list with other words breaks."""

    def find(config: Config) -> str | None:
        unknown = [word for word in value_of(config, flag) if word not in words]
        if not unknown:
            return None
        return f"{unknown[0]!r} is no {what}: there are {', '.join(words)}{did_you_mean(unknown[0], words)}"

    return Rule((flag,), find)


def _unknown_layout(config: Config) -> str | None:
    for key, layout in keys_and_layouts(config.model.obs_layout):
        if layout not in (*LAYOUTS, *BY_RANK):
            form = "" if key else "; write KEY=LAYOUT, or one LAYOUT for an env with a single observation"
            return f"{layout!r} is no layout: there are {', '.join(LAYOUTS)}{did_you_mean(layout, LAYOUTS)}{form}"
    return None


_PARTS = ("encoder", "core", "decoder")
_OF_ENCODER = (
    *("encoder_mlp_layers", "encoder_per_key", "encoder_conv_architecture", "encoder_conv_mlp_layers"),
    *("encoder_entity_size", "encoder_entity_heads", "encoder_entity_layers", "one_hot_max"),
    *("obs_embedding_size", "obs_subtract_mean", "obs_scale"),
)
_OF_CORE = ("rnn_type", "rnn_size", "rnn_num_layers")
# Of heads and of all layers. Not amp, which lets a GPU multiply the matrices of any network as TF32.
_OF_ALL_PARTS = (
    *("adaptive_stddev", "initial_stddev", "continuous_tanh_scale", "nonlinearity"),
    *("policy_initialization", "policy_init_gain", "use_layer_norm", "use_spectral_norm"),
)

NETWORK_RULES = (
    *(excludes("model", part, "a whole model has no parts") for part in _PARTS),
    needs("core", "use_rnn", "a core is the memory of a policy"),
    refuse(
        ("model", "actor_critic_share_weights"),
        lambda config: bool(config.model.model) and not config.model.actor_critic_share_weights,
        "a whole model is actor and critic in one: leave --actor_critic_share_weights=False out",
    ),
    refuse(
        ("model", "use_cpc"),
        lambda config: bool(config.model.model) and config.algo.use_cpc,
        "--use_cpc=True trains the encoder and the core of a policy, which a whole model does not have",
    ),
    _two_networks("critic_obs_keys"),
    _two_networks("actor_obs_keys"),
    Rule(("obs_layout",), _unknown_layout),
    _only("core_inputs", CORE_INPUTS, "input of a core"),
    needs("core_inputs", "use_rnn", "only a policy with a memory has such inputs"),
    excludes("core_inputs", "model", "a whole model has no core"),
    excludes("use_layer_norm", "use_spectral_norm", "the layers would be normalized twice"),
    multiple_of("encoder_entity_size", "encoder_entity_heads"),
    *(_built_in(name, "encoder") for name in _OF_ENCODER),
    *(_built_in(name, "core") for name in _OF_CORE),
    _built_in("decoder_mlp_layers", "decoder"),
    *(_built_in(name, "model") for name in _OF_ALL_PARTS),
    refuse(
        ("model_kwargs", "encoder", "core", "decoder", "model"),
        lambda config: bool(config.model.model_kwargs) and not any(getattr(config.model, name) for name in NETWORKS),
        "are keyword arguments for a network of your own, and none is named: add --encoder=module:Class",
    ),
)


def _exploration_schedule(config: Config) -> str | None:
    text = config.algo.exploration_loss_coeff_schedule
    return decay_error(text) if decays(text) else points_error(text, f"must be {DECAY_FORM}; or ")


OBJECTIVE_RULES = (
    Rule(("exploration_loss_coeff_schedule",), _exploration_schedule),
    refuse(
        ("vtrace_drop_last_ts", "rollout"),
        lambda config: config.algo.vtrace_drop_last_ts and config.sampling.rollout == 1,
        "with --rollout=1 the last step is the only one, and nothing would be learned: use --rollout=2 or more",
    ),
    needs("kl_target", "kl_loss_coeff", "adapts kl_loss_coeff, which is 0 and would stay so", value=0.2),
    needs(
        "use_target_net",
        "policy_loss",
        "the target network is one side of a clipped ratio",
        lambda loss: loss == "ppo_clip",
        "ppo_clip",
    ),
    needs("use_target_net", "with_vtrace", "the target network gives importance weights to V-trace"),
    refuse(
        ("target_tau", "use_spectral_norm"),
        lambda config: config.algo.use_target_net and config.algo.target_tau != 1.0 and config.model.use_spectral_norm,
        "a mean of two networks has other spectral norms than either: use --target_tau=1.0 with "
        "--use_spectral_norm=True",
    ),
    refuse(
        ("sync_every", "use_spectral_norm"),
        lambda config: config.learner.sync_every > 1 and config.model.use_spectral_norm,
        "a mean of networks has other spectral norms than each of them: leave one of the two out",
    ),
    *idle_unless(
        ("vtrace_rho", "vtrace_pg_rho", "vtrace_c", "vtrace_lambda", "vtrace_adv_weighting", "vtrace_drop_last_ts"),
        "with_vtrace",
    ),
    idle_if(
        ("vtrace_pg_rho", "with_vtrace", "vtrace_adv_weighting", "policy_loss"),
        # Without V-trace the rule above is broken.
        lambda config: config.algo.with_vtrace and not config.algo.weights_advantages,
        "--vtrace_adv_weighting=rho",
    ),
    *idle_unless(("ppo_clip_low",), "policy_loss", lambda loss: loss == "ppo_clip", "ppo_clip"),
    *idle_unless(("target_update_interval", "target_tau", "target_worker_clip"), "use_target_net"),
    *idle_unless(("exploration_loss_coeff_schedule",), "exploration_loss", lambda loss: loss != "none", "entropy"),
)

_OF_THE_EXTRA = ("lamb", "muon")
_EXTRA_MODULE = "pytorch_optimizer"


def _rate_schedule(config: Config) -> str | None:
    text = config.optim.lr_schedule
    if text in LR_WORDS:
        return None
    if decays(text):
        return decay_error(text)
    choices = f"must be one of {', '.join(LR_WORDS)}, or "
    if ":" not in text:
        return f"{choices}{POINTS_FORM}{did_you_mean(text, LR_WORDS)}"
    return points_error(text, choices)


def _critic_has_own_weights(config: Config) -> str | None:
    if not config.optim.separate_value_optimizer or not config.model.actor_critic_share_weights:
        return None
    shared = "encoder, recurrent core and decoder" if config.model.use_rnn else "encoder and decoder"
    return (
        f"{shared} are shared by actor and critic, so that two optimizers would step them: needs "
        "--actor_critic_share_weights=False"
    )


def _missing_package(config: Config) -> str | None:
    if config.optim.optimizer not in _OF_THE_EXTRA or importlib.util.find_spec(_EXTRA_MODULE) is not None:
        return None
    return f"needs the package {_EXTRA_MODULE}, which is not installed; run: {install_command('optimizers')}"


def _something_is_learned(config: Config) -> str | None:
    model, frozen = config.model, set(config.optim.freeze)
    learned = {"model", "value"} if model.model else {"encoder", "policy", "value"}
    if not model.model:
        learned |= {"core"} if model.use_rnn else set()
        learned |= {"decoder"} if model.decoder or model.decoder_mlp_layers else set()
    if learned - frozen:
        return None
    return f"leaves nothing to learn: leave one of {', '.join(sorted(learned))} out"


OPTIMIZER_RULES = (
    _only("freeze", PARTS, "part of a policy"),
    Rule(("freeze", "use_rnn", "decoder_mlp_layers", "decoder", "model"), _something_is_learned),
    _only("init_parts", PARTS, "part of a policy"),
    *idle_unless(("freeze_until",), "freeze", value="encoder"),
    *idle_unless(("init_parts",), "init_from", value="RUN"),
    Rule(("lr_schedule",), _rate_schedule),
    Rule(("value_lr_schedule",), lambda config: points_error(config.optim.value_lr_schedule)),
    Rule(("separate_value_optimizer", "actor_critic_share_weights", "use_rnn"), _critic_has_own_weights),
    at_most("lr_adaptive_min", "lr_adaptive_max"),
    *idle_unless(
        ("lr_schedule_kl_threshold", "lr_adaptive_min", "lr_adaptive_max"),
        "lr_schedule",
        KL_ADAPTIVE.__contains__,
        KL_ADAPTIVE[0],
    ),
    Rule(("optimizer",), _missing_package),
    *idle_unless(("value_lr", "value_lr_schedule"), "separate_value_optimizer"),
    *idle_unless(("adam_eps", "adam_beta1", "adam_beta2"), "optimizer", lambda kind: kind != "rmsprop", "adam"),
    *idle_unless(
        ("rmsprop_alpha", "rmsprop_momentum", "rmsprop_eps", "rmsprop_tf_style"),
        "optimizer",
        lambda kind: kind == "rmsprop",
        "rmsprop",
    ),
    *idle_unless(("weight_decay",), "optimizer", lambda kind: kind in ("adamw", *_OF_THE_EXTRA), "adamw"),
)
