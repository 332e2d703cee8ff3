"""Flags of the policies: of their network, and of a population of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sfactory.config.field import flag


@dataclass(frozen=True)
class ModelConfig:
    """The actor-critic network."""

    encoder_mlp_layers: tuple[int, ...] = flag((512, 512), "hidden layers of the MLP encoder", ge=1)
    encoder_conv_architecture: Literal["convnet_simple", "convnet_impala", "convnet_atari", "resnet_impala"] = flag(
        "convnet_simple", "convolutions for images (observations with three dimensions); resnet_impala takes any size"
    )
    encoder_conv_mlp_layers: tuple[int, ...] = flag((512,), "hidden layers after the convolutions", ge=1)
    use_rnn: bool = flag(False, "give the policy a memory: a recurrent core between encoder and heads")
    rnn_type: Literal["gru", "lstm"] = flag("gru", "type of the recurrent core")
    rnn_size: int = flag(512, "hidden units of each recurrent layer", ge=1)
    rnn_num_layers: int = flag(1, "recurrent layers", ge=1, le=64)
    decoder_mlp_layers: tuple[int, ...] = flag((), "hidden layers between the core and the heads", ge=1)
    nonlinearity: Literal["elu", "relu", "tanh"] = flag("elu", "activation function")
    policy_initialization: Literal["orthogonal", "xavier_uniform", "torch_default"] = flag(
        "orthogonal", "initialization of weights"
    )
    policy_init_gain: float = flag(1.0, "gain of the initialization of hidden layers", gt=0)
    use_spectral_norm: bool = flag(
        False, "divide the weights of each layer of MLP encoders and decoders by their largest singular value"
    )
    actor_critic_share_weights: bool = flag(True, "one network for actor and critic; False builds two")
    adaptive_stddev: bool = flag(True, "Box actions: the standard deviation depends on the state")
    initial_stddev: float = flag(1.0, "Box actions: initial standard deviation", gt=0)
    continuous_tanh_scale: float = flag(
        0.0, "Box actions: means are c tanh(mean / c) with this c (needs adaptive_stddev=False); 0 is off", ge=0
    )
    normalize_input: bool = flag(
        True, "shift and scale observations to mean 0 and deviation 1 by their running statistics"
    )
    normalize_input_keys: tuple[str, ...] = flag((), "keys of the observations to normalize; empty: all")
    normalize_returns: bool = flag(
        True, "the value function predicts returns normalized to mean 0 and deviation 1 (with V-trace, too)"
    )
    amp: Literal["off", "bf16", "fp16", "auto"] = flag(
        "off",
        "format that encoders and decoders compute in: bfloat16 or float16; the first layer over plain numbers, all "
        "else, weights and checkpoints stay float32 (which a GPU then multiplies as TF32); auto uses bf16 if the "
        "device has units for it",
    )
    cuda_graphs: bool = flag(
        False,
        "central inference on a GPU replays recorded passes over batches padded to a few sizes; no effect on a CPU",
    )
    obs_subtract_mean: float = flag(0.0, "observations that are not normalised are (obs - this) / obs_scale")
    obs_scale: float = flag(1.0, "observations that are not normalised are (obs - obs_subtract_mean) / this", gt=0)


@dataclass(frozen=True)
class PopulationConfig:
    """How many policies there are, who plays which, and population-based training (PBT)."""

    num_policies: int = flag(1, "number of policies trained side by side, each with its own learner", ge=1, le=64)
    train_policies: tuple[int, ...] = flag(
        (), "policies that learn; the others play with fixed weights; empty: all of them learn", ge=0
    )
    policy_mapping: str = flag(
        "auto",
        "which policy plays: split assigns one to each split for the whole run; env and agent draw one for each "
        "environment or agent; auto is agent where environments have several agents and pbt_mix_policies_in_one_env "
        "is True, split otherwise (env if there are fewer splits than policies); module:function is called with the "
        "agent's name, its episode and the number of its env, and returns a policy",
    )
    policy_mapping_episodes: int = flag(10, "episodes after which the policy that plays is drawn again", ge=1)
    with_pbt: bool = flag(
        False,
        "population-based training: the worst policies copy weights and hyperparameters of the best, and "
        "hyperparameters are mutated",
    )
    pbt_mix_policies_in_one_env: bool = flag(
        True, "policy_mapping=auto: different policies play the agents of one environment"
    )
    pbt_period_env_steps: int = flag(5_000_000, "env steps of a policy between two of its PBT updates", ge=1)
    pbt_start_mutation: int = flag(20_000_000, "env steps of a policy before its first PBT update", ge=0)
    pbt_replace_fraction: float = flag(
        0.3, "share of the policies that count as the best, and as the worst; rounded up to whole policies", gt=0, lt=1
    )
    pbt_mutation_rate: float = flag(0.15, "probability that a hyperparameter is mutated in a PBT update", ge=0, le=1)
    pbt_replace_reward_gap: float = flag(
        0.1,
        "a policy is replaced only if the other is better by more than this share of the larger of the two objectives"
        " (absolute values)",
        ge=0,
        lt=1,
    )
    pbt_replace_reward_gap_absolute: float = flag(
        1e-6, "a policy is replaced only if the other is better by more than this", ge=0
    )
    pbt_optimize_gamma: bool = flag(False, "also mutate gamma")
    pbt_optimize_batch_size: bool = flag(False, "also mutate batch_size, which is doubled or halved")
    pbt_target_objective: str = flag(
        "true_objective",
        "what ranks policies, as a mean over stats_avg episodes: true_objective (reward, where the environment has "
        "none), reward, length, or the name of an extra episode statistic",
    )
    pbt_perturb_min: float = flag(1.1, "smallest factor of a mutation", gt=1, le=100)
    pbt_perturb_max: float = flag(1.5, "largest factor of a mutation", gt=1, le=100)
    pbt_hyperparameters: Mapping[str, Any] = flag(
        {},
        'JSON object that adds a flag to the mutated ones, or changes how it is mutated: {"adam_beta1": {}, '
        '"learning_rate": {"min": 1e-5, "max": 1e-3, "how": "log_uniform"}, "ppo_clip_ratio": null}; keys that are '
        "left out have the defaults of docs/populations.md, null switches a flag off; how: factor, one_minus, double,"
        " uniform, log_uniform",
    )
