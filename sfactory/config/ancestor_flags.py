"""Room: what ancestors called our flags. In: a name as it was typed. Out: whose name it is, and which flags are meant.

Names that are ours, too, are not among them. What became of every flag of the ancestors is told in docs/flags.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

RLLIB = "RLlib"
SAMPLE_FACTORY_1 = "Sample Factory 1"

_OF_RLLIB: Mapping[str, tuple[str, ...]] = {
    "num_sgd_iter": ("num_epochs",),
    "sgd_minibatch_size": ("batch_size",),
    "minibatch_size": ("batch_size",),
    "train_batch_size": ("batch_size",),
    "train_batch_size_per_learner": ("batch_size",),
    "rollout_fragment_length": ("rollout",),
    "minibatch_buffer_size": ("minibatch_ring_size",),
    "replay_buffer_num_slots": ("replay_slots",),
    "broadcast_interval": ("publish_interval",),
    "learner_queue_size": ("num_batches_to_accumulate",),
    "learner_queue_timeout": ("learner_starvation_timeout_sec",),
    "num_multi_gpu_tower_stacks": ("num_gpu_slots",),
    "num_data_loader_buffers": ("num_gpu_slots",),
    "num_data_load_threads": ("num_loader_threads",),
    "num_gpu_loader_threads": ("num_loader_threads",),
    "num_aggregation_workers": ("num_batchers",),
    "num_aggregator_actors_per_learner": ("num_batchers",),
    "opt_type": ("optimizer",),
    "grad_clip": ("max_grad_norm",),
    "decay": ("rmsprop_alpha",),
    "momentum": ("rmsprop_momentum",),
    "epsilon": ("rmsprop_eps",),
    "lr": ("learning_rate",),
    "entropy_coeff": ("exploration_loss_coeff",),
    "entropy_coeff_schedule": ("exploration_loss_coeff_schedule",),
    "vf_loss_coeff": ("value_loss_coeff",),
    "vtrace": ("with_vtrace",),
    "vtrace_clip_rho_threshold": ("vtrace_rho",),
    "vtrace_clip_pg_rho_threshold": ("vtrace_pg_rho",),
    "_separate_vf_optimizer": ("separate_value_optimizer",),
    "_lr_vf": ("value_lr",),
    "min_time_s_per_reporting": ("report_interval_sec",),
    "min_time_s_per_iteration": ("report_interval_sec",),
    "min_iter_time_s": ("report_interval_sec",),
    "num_env_runners": ("num_workers",),
    "num_rollout_workers": ("num_workers",),
    "num_envs_per_env_runner": ("num_envs_per_worker",),
    "num_gpus_per_worker": ("actor_worker_gpus",),
    "num_gpus_per_env_runner": ("actor_worker_gpus",),
    "evaluation_interval": ("eval_interval_sec",),
    "evaluation_num_workers": ("eval_workers",),
    "evaluation_num_env_runners": ("eval_workers",),
    "evaluation_num_episodes": ("eval_episodes",),
    "evaluation_duration": ("eval_episodes",),
    "max_requests_in_flight_per_env_runner": ("max_sample_requests_in_flight_per_worker",),
    "target_network_update_freq": ("target_update_interval",),
    "target_worker_clipping": ("target_worker_clip",),
    "tau": ("target_tau",),
    "kl_coeff": ("kl_loss_coeff",),
    "lambda": ("gae_lambda",),
    "lambda_": ("gae_lambda",),
    "use_gae": ("with_vtrace",),
    "use_kl_loss": ("kl_loss_coeff",),
    "num_gpus": ("device",),
    "clip_param": ("ppo_clip_ratio",),
    "vf_clip_param": ("ppo_clip_value",),
    "circular_buffer_num_batches": ("minibatch_ring_size",),
    "circular_buffer_iterations_per_batch": ("num_epochs",),
}
_OF_SAMPLE_FACTORY_1: Mapping[str, tuple[str, ...]] = {
    "num_batches_per_iteration": ("num_batches_per_epoch",),
    "ppo_epochs": ("num_epochs",),
    "num_minibatches_to_accumulate": ("num_batches_to_accumulate",),
    "entropy_loss_coeff": ("exploration_loss_coeff",),
    "sampler_worker_gpus": ("actor_worker_gpus",),
    "timeout_seconds": ("benchmark_seconds",),
    "traj_buffers_excess_ratio": ("min_traj_buffers_per_worker",),
    "encoder_extra_fc_layers": ("encoder_conv_mlp_layers",),
    "hidden_size": ("rnn_size", "encoder_mlp_layers", "encoder_conv_mlp_layers"),
}
# Whose name it is, and the flags that are meant, by name.
ANCESTOR_FLAGS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **{name: (RLLIB, ours) for name, ours in _OF_RLLIB.items()},
    **{name: (SAMPLE_FACTORY_1, ours) for name, ours in _OF_SAMPLE_FACTORY_1.items()},
}


def ancestor_hint(name: str, known: Collection[str], prefix: str = "") -> str:
    """``is RLlib's name; here it is --num_epochs`` (with ``prefix`` ``--``), or "" for a name of nobody's.

    known: the flags that may be given where ``name`` was.
    """
    owner, ours = ANCESTOR_FLAGS.get(name, ("", ()))
    here = [prefix + each for each in ours if each in known]
    return f"is {owner}'s name; here it is {' or '.join(here)}" if here else ""
