"""Flags of the actor-critic network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sfactory.config.field import flag

AUTO = ("auto",)  # of critic_obs_keys: to be found out from the env
CORE_INPUTS = ("action", "reward")
# What --obs_layout may have an observation read as.
LAYOUTS = ("flat", "choices", "mask", "entities", "hw", "hwc", "chw", "thwc", "tchw")
BY_RANK = ("by_rank",)  # what runs did before --obs_layout existed: all arrays of three dimensions are images
# Parts of a policy. normalizer: of observations; policy and value: the heads; model: all of a model of the user's own.
PARTS = ("normalizer", "encoder", "core", "decoder", "policy", "value", "model")


def keys_and_layouts(obs_layout: tuple[str, ...]) -> list[tuple[str, str]]:
    """What ``--obs_layout`` says: KEY and LAYOUT of each entry; the key of an entry without one is ""."""
    return [(key, layout) for key, _, layout in (entry.rpartition("=") for entry in obs_layout)]


@dataclass(frozen=True)
class ModelConfig:
    """The actor-critic network."""

    encoder: str = flag(
        "", "encoder of your own, as module:Class or the name of an installed one (docs/own_agent.md); empty: built in"
    )
    core: str = flag(
        "", "recurrent core of your own (needs use_rnn), as module:Class or a name; empty: that of rnn_type"
    )
    decoder: str = flag("", "decoder of your own, as module:Class or a name; empty: decoder_mlp_layers")
    model: str = flag("", "a whole actor-critic of your own in place of encoder, core and decoder; empty: none")
    model_kwargs: Mapping[str, Any] = flag(
        {}, "keyword arguments for the networks of your own, as a JSON object; of several, one object for each"
    )
    encoder_mlp_layers: tuple[int, ...] = flag((512, 512), "hidden layers of the MLP encoder", ge=1)
    encoder_per_key: bool = flag(
        False, "an MLP of its own for each observation, their features side by side; False: one for all but images"
    )
    encoder_conv_architecture: Literal[
        "convnet_simple", "convnet_impala", "convnet_atari", "convnet_minatar", "resnet_impala", "resnet_impoola"
    ] = flag(
        "convnet_simple",
        "convolutions for images (observations with three dimensions); convnet_minatar, one layer of 3x3, is for small "
        "ones, as boards and grids are; the two residual networks take any size, "
        "resnet_impoola is resnet_impala with the mean over all places of its last images",
    )
    encoder_conv_mlp_layers: tuple[int, ...] = flag((512,), "hidden layers after the convolutions", ge=1)
    encoder_entity_size: int = flag(128, "features of each entity of an observation with the layout entities", ge=1)
    encoder_entity_heads: int = flag(4, "heads of the attention among entities", ge=1)
    encoder_entity_layers: int = flag(1, "layers of attention among entities", ge=1, le=64)
    use_rnn: bool = flag(False, "give the policy a memory: a recurrent core between encoder and heads")
    rnn_type: Literal["gru", "lstm", "mingru"] = flag(
        "gru", "type of the recurrent core; mingru learns from all steps of a rollout at once"
    )
    rnn_size: int = flag(512, "hidden units of each recurrent layer", ge=1)
    rnn_num_layers: int = flag(1, "recurrent layers", ge=1, le=64)
    core_inputs: tuple[str, ...] = flag(
        (),
        "what the recurrent core gets beside the encoder's features: action, reward (of the step before; zeros at the "
        "start of an episode), or both",
    )
    decoder_mlp_layers: tuple[int, ...] = flag((), "hidden layers between the core and the heads", ge=1)
    nonlinearity: Literal["elu", "relu", "tanh"] = flag("elu", "activation function")
    policy_initialization: Literal["orthogonal", "xavier_uniform", "torch_default"] = flag(
        "orthogonal", "initialization of weights"
    )
    policy_init_gain: float = flag(1.0, "gain of the initialization of hidden layers", gt=0)
    use_spectral_norm: bool = flag(
        False, "divide the weights of each layer of MLP encoders and decoders by their largest singular value"
    )
    use_layer_norm: bool = flag(
        False,
        "normalize the outputs of linear layers of MLPs, after convolutions and of decoders, before their activation",
    )
    actor_critic_share_weights: bool = flag(True, "one network for actor and critic; False builds two")
    critic_obs_keys: tuple[str, ...] = flag(
        AUTO,
        "observations that the critic alone reads, by key, so that the policy acts without them (docs/own_agent.md); "
        "auto: the group critic of an env whose observations have the groups policy and critic",
    )
    actor_obs_keys: tuple[str, ...] = flag((), "observations that the actor alone reads, by key")
    adaptive_stddev: bool = flag(True, "Box actions: the standard deviation depends on the state")
    initial_stddev: float = flag(1.0, "Box actions: initial standard deviation", gt=0)
    normalize_actions: bool = flag(
        True,
        "Box actions: the policy acts in [-1, 1] in each dimension with two finite bounds, and its actions are scaled "
        "to them; False clips its actions to the bounds",
    )
    continuous_distribution: Literal["gaussian", "squashed"] = flag(
        "gaussian",
        "Box actions: normal distributions with samples clipped to the bounds, or squashed by tanh (in dimensions "
        "with two finite bounds; needs normalize_actions)",
    )
    continuous_tanh_scale: float = flag(
        0.0, "Box actions: means are c tanh(mean / c) with this c (needs adaptive_stddev=False); 0 is off", ge=0
    )
    normalize_input: bool = flag(True, "scale observations to mean 0 and deviation 1 by their running statistics")
    normalize_input_keys: tuple[str, ...] = flag((), "keys of the observations to normalize; empty: all")
    normalize_input_clip: float = flag(
        5.0, "normalized observations are clipped to this many deviations; other libraries have 10", gt=0
    )
    normalize_returns: bool = flag(
        True, "the value function predicts returns normalized to mean 0 and deviation 1 (with V-trace, too)"
    )
    amp: Literal["off", "bf16", "fp16", "auto"] = flag(
        "off",
        "format that built-in encoders and decoders compute in: bfloat16 or float16; the first layer over plain "
        "numbers, all else, weights and checkpoints stay float32 (which a GPU then multiplies as TF32); auto uses bf16 "
        "if the device has units for it; on a GPU auto is the default for images that no env family makes",
    )
    cuda_graphs: bool = flag(
        False,
        "on a GPU, central inference replays recorded passes over batches padded to few sizes, and the learner replays "
        "recorded updates (with adam and adamw, built-in networks, without use_cpc and rnd), and True is the default "
        "there, but for serial mode and after_train_step; no effect on CPUs",
    )
    obs_keys: tuple[str, ...] = flag((), "observations that the network reads, by key; empty: all")
    ignore_obs_keys: tuple[str, ...] = flag((), "observations that the network does not read, by key")
    obs_layout: tuple[str, ...] = flag(
        (),
        "how observations are read, as KEY=LAYOUT: flat (numbers), choices (integers that are names, one-hot or "
        "embedded), mask (of legal actions), entities (a set, one in each row), or an image: hw, hwc, chw, or a stack "
        "of images: thwc, tchw; by default Discrete observations are "
        "choices, large uint8 arrays are images, and all else is flat; by_rank alone, as in runs older than this flag: "
        "all arrays of three dimensions are images",
    )
    one_hot_max: int = flag(
        1024,
        "Discrete and MultiDiscrete observations with up to this many values (of all elements together) are one-hot, "
        "larger ones are embedded; 0: they are read as numbers",
        ge=0,
    )
    obs_embedding_size: int = flag(32, "numbers per element of a (Multi)Discrete observation with many values", ge=1)
    obs_subtract_mean: float = flag(0.0, "built-in encoders read what is not normalised as (obs - this) / obs_scale")
    obs_scale: float = flag(
        1.0, "built-in encoders read what is not normalised as (obs - obs_subtract_mean) / this", gt=0
    )

    @property
    def critic_only(self) -> tuple[str, ...]:
        """``critic_obs_keys``; none while they are to be found out."""
        return () if self.critic_obs_keys == AUTO else self.critic_obs_keys
