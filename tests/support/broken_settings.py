"""Settings that break one rule each: (the flag to be named, values by flag name)."""

from __future__ import annotations

from typing import Any

from sfactory.config.flags import all_flags, coerce

Row = tuple[str, dict[str, Any]]

# A round of 2 workers x 8 envs x 16 steps is 256 env steps.
SYNCHRONOUS: dict[str, Any] = {
    "async_rl": False,
    "num_workers": 2,
    "num_envs_per_worker": 8,
    "rollout": 16,
    "batch_size": 256,
}
RETRO: dict[str, Any] = {"env": "retro:Airstriker-Genesis-v0", "worker_num_splits": 1}
WRAPPERS: dict[str, Any] = {
    "sticky_actions": 0.25,
    "action_repeat": 2,
    "max_episode_steps": 9,
    "obs_grey": True,
    "obs_resize": (84, 84),
    "env_framestack": 4,
    "flatten_obs": True,
}
REPLAY: dict[str, Any] = {"replay_proportion": 0.5, "replay_slots": 10}
WARM_UP: dict[str, Any] = {"ring_warmup": 1, "num_epochs": 2}
OWN = "my_networks:Own"
CPC: dict[str, Any] = {"use_cpc": True, "use_rnn": True}
OWN_CRITIC: dict[str, Any] = {"separate_value_optimizer": True, "actor_critic_share_weights": False}
MEMBER: dict[str, Any] = {"pbt_dir": "/shared/population", "pbt_member": 0}
REMOTE: dict[str, Any] = {"remote_actors_port": 5555, "remote_actors_token_file": "token"}
# Runs that remote actors cannot join.
NOT_REMOTE: dict[str, dict[str, Any]] = {
    "async_rl": SYNCHRONOUS,
    "serial_mode": {"serial_mode": True},
    "num_policies": {"num_policies": 2},
    "opponent_pool": {"opponent_pool": 4},
    "pbt_dir": {**MEMBER, "with_pbt": True},
    "benchmark": {"benchmark": True},
    "autotune": {"autotune": True},
}
POPULATION: dict[str, Any] = {"num_policies": 4, "with_pbt": True}
# Mutated by default.
MUTATED = (
    "ppo_clip_ratio",
    "ppo_clip_value",
    "value_loss_coeff",
    "exploration_loss_coeff",
    "learning_rate",
    "max_grad_norm",
)

# Each of these is wrong by itself, or belongs to another flag. The package of two optimizers is hidden in tests.
ALONE = """
    experiment=a/b device=tpu num_envs_per_worker=3 batch_size=33 sampler_only=True benchmark_stage=learn
    lr_schedule=linear_decay lr_adaptive_min=0.001 continuous_tanh_scale=2.0 save_milestones_sec=0.0
    autotune_batch=True minibatch_ring_size=2 learner_queue_policy=drop_oldest replay_proportion=0.5
    microbatch_size=100 ring_nonblocking=True replay_slots=10 replay_include_new=True max_replay_lag=5
    early_stop_kl=0.1 exploration_loss_coeff_schedule=5:0.1 kl_target=0.01 target_update_interval=8
    target_tau=0.5 target_worker_clip=3.0 lr_schedule=warm_up lr_schedule=0:1e-3,5:-1e-3 optimizer=lamb
    optimizer=muon separate_value_optimizer=True value_lr=0.1 value_lr_schedule=0:0.1 rmsprop_alpha=0.5
    rmsprop_momentum=0.5 rmsprop_tf_style=True weight_decay=0.1 use_cpc=True cpc_forward_steps=4
    cpc_time_subsample=4 cpc_forward_subsample=4 aux_loss_coeff=0.5 eval_workers=2 eval_episodes=5 eval_video=True
    rnd_coeff=1.0 rnd_gamma=0.9 rnd_share=0.5 rnd_first_only=False sync_momentum=0.5
    lr_adaptive_max=0.1 lr_schedule_kl_threshold=0.1
    learner_devices=0,0 learner_devices=0,cpu
    eval_deterministic=False with_pbt=True opponent_snapshot_env_steps=5 opponent_sampling=pfsp opponent_share=0.3
    policy_mapping=split policy_mapping_episodes=1
    num_workers=0 remote_actors_port=5555 remote_actors_host=0.0.0.0 remote_actors_token_file=token
    pbt_mix_policies_in_one_env=False pbt_period_env_steps=1000 pbt_start_mutation=1000 pbt_replace_fraction=0.5
    pbt_mutation_rate=0.5 pbt_replace_reward_gap=0.5 pbt_replace_reward_gap_absolute=0.5 pbt_optimize_gamma=True
    pbt_optimize_batch_size=True pbt_target_objective=reward pbt_perturb_min=1.2 pbt_perturb_max=2.0 pbt_member=1
"""

BROKEN: list[Row] = [
    *((name, {name: coerce(all_flags()[name], text)}) for name, _, text in (w.partition("=") for w in ALONE.split())),
    ("env", {"env": ""}),
    ("save_best_metric", {"save_best_metric": "eval_return"}),
    ("save_best_metric", {"save_best_metric": "eval_return", "eval_interval_sec": 9.0, "num_policies": 2}),
    ("num_envs_per_worker", {**RETRO, "num_envs_per_worker": 2}),
    ("worker_num_splits", {"env": "isaaclab:Isaac-Ant-v0", "worker_num_splits": 2}),
    ("num_workers", {**RETRO, "num_envs_per_worker": 1, "num_workers": 2, "serial_mode": True}),
    *((name, {"env": "vector:CartPole-v1", name: value}) for name, value in WRAPPERS.items()),
    ("train_dir", {"train_dir": ""}),
    ("benchmark_stage", {"benchmark": True, "benchmark_stage": "learn", "sampler_only": True}),
    ("policy_workers_per_policy", {"num_workers": 2, "policy_workers_per_policy": 2, "inference": "local"}),
    ("policy_workers_per_policy", {"num_workers": 2, "policy_workers_per_policy": 3}),
    ("recurrence", {"rollout": 16, "recurrence": 5}),
    ("async_rl", {**SYNCHRONOUS, "batch_size": 144}),
    ("max_sample_requests_in_flight_per_worker", {**SYNCHRONOUS, "max_sample_requests_in_flight_per_worker": 2}),
    ("continuous_distribution", {"normalize_actions": False, "continuous_distribution": "squashed"}),
    ("normalize_input_keys", {"normalize_input": False, "normalize_input_keys": ("obs",)}),
    ("normalize_input_clip", {"normalize_input": False, "normalize_input_clip": 10.0}),
    ("benchmark", {"serial_mode": True, "benchmark": True}),
    ("policy_workers_per_policy", {"serial_mode": True, "num_workers": 2, "policy_workers_per_policy": 2}),
    ("autotune", {"autotune": True, "serial_mode": True}),
    ("autotune", {"autotune": True, "benchmark": True, "benchmark_stage": "env"}),
    ("autotune", {"autotune": True, "benchmark": True, "benchmark_stage": "learn"}),
    *((flag, {**REMOTE, **settings}) for flag, settings in NOT_REMOTE.items()),
    ("minibatch_ring_size", {"minibatch_ring_size": 2, "train_in_background_thread": False}),
    ("num_batchers", {"num_batchers": 2, "num_workers": 4}),
    ("num_batchers", {"num_batchers": 2, "num_workers": 4, "serial_mode": True}),
    ("num_batchers", {"num_batchers": 3, "num_workers": 2, "num_batches_to_accumulate": 4}),
    ("ring_warmup", {"ring_warmup": 3, "num_epochs": 2}),
    ("ring_warmup", {**WARM_UP, "train_in_background_thread": False}),
    ("ring_warmup", {**WARM_UP, "serial_mode": True}),
    ("ring_warmup", {**WARM_UP, "num_batches_to_accumulate": 0}),
    ("ring_warmup", {**WARM_UP, **SYNCHRONOUS}),
    ("learner_queue_policy", {"learner_queue_policy": "drop_oldest", "train_in_background_thread": False}),
    ("replay_proportion", {**REPLAY, "with_vtrace": False}),
    ("replay_proportion", {**REPLAY, "num_batches_to_accumulate": 0}),
    ("replay_proportion", {**REPLAY, **SYNCHRONOUS}),
    ("replay_proportion", {**REPLAY, "replay_proportion": 1.5, "batch_size": 64}),
    ("publish_interval", {**SYNCHRONOUS, "publish_interval": 2}),
    ("learner_cores", {"learner_cores": 1, "set_workers_cpu_affinity": False}),
    ("exploration_loss_coeff_schedule", {"exploration_loss_coeff_schedule": "0:0.1", "exploration_loss": "none"}),
    ("exploration_loss_coeff_schedule", {"exploration_loss_coeff_schedule": "linear_decay"}),
    ("lr_schedule", {"lr_schedule": "linear_decay:0.5:1"}),
    ("vtrace_drop_last_ts", {"vtrace_drop_last_ts": True, "rollout": 1}),
    ("use_target_net", {"use_target_net": True, "policy_loss": "pg"}),
    ("use_target_net", {"use_target_net": True, "with_vtrace": False}),
    ("vtrace_rho", {"with_vtrace": False, "vtrace_rho": None}),
    ("vtrace_pg_rho", {"with_vtrace": False, "vtrace_pg_rho": 2.0}),
    ("vtrace_pg_rho", {"vtrace_pg_rho": 2.0}),
    ("vtrace_pg_rho", {"vtrace_pg_rho": 2.0, "policy_loss": "pg", "vtrace_adv_weighting": "none"}),
    ("vtrace_c", {"with_vtrace": False, "vtrace_c": 0.5}),
    ("vtrace_lambda", {"with_vtrace": False, "vtrace_lambda": 0.5}),
    ("vtrace_adv_weighting", {"with_vtrace": False, "vtrace_adv_weighting": "none"}),
    ("vtrace_drop_last_ts", {"with_vtrace": False, "vtrace_drop_last_ts": True}),
    ("target_tau", {"use_target_net": True, "target_tau": 0.5, "use_spectral_norm": True}),
    ("ppo_clip_low", {"policy_loss": "pg", "ppo_clip_low": 0.8}),
    ("lr_adaptive_min", {"lr_schedule": "kl_adaptive_epoch", "lr_adaptive_min": 0.5}),
    ("value_lr_schedule", {**OWN_CRITIC, "value_lr_schedule": "linear"}),
    ("adam_eps", {"optimizer": "rmsprop", "adam_eps": 0.1}),
    ("adam_beta1", {"optimizer": "rmsprop", "adam_beta1": 0.1}),
    ("adam_beta2", {"optimizer": "rmsprop", "adam_beta2": 0.1}),
    ("rmsprop_eps", {"optimizer": "adamw", "rmsprop_eps": 0.5}),
    ("weight_decay", {"optimizer": "rmsprop", "weight_decay": 0.1}),
    ("cpc_forward_steps", {**CPC, "cpc_forward_steps": 32}),
    ("cpc_forward_subsample", {**CPC, "cpc_forward_subsample": 9}),
    ("cpc_time_subsample", {**CPC, "cpc_time_subsample": 32}),
    ("aux_loss_coeff", {**CPC, "aux_loss_coeff": 0.0}),
    ("use_cpc", {**CPC, "microbatch_size": 512}),
    ("rnd", {**CPC, "rnd": True}),
    ("rnd", {"model": "my_parts:Model", "rnd": True}),
    *(("model", {"model": OWN, part: OWN, "use_rnn": True}) for part in ("encoder", "core", "decoder")),
    ("model", {"model": OWN, "actor_critic_share_weights": False}),
    ("model", {"model": OWN, **CPC}),
    *((keys, {keys: ("state",)}) for keys in ("critic_obs_keys", "actor_obs_keys")),
    *((keys, {keys: ("state",), "model": OWN}) for keys in ("critic_obs_keys", "actor_obs_keys")),
    ("core", {"core": OWN}),
    ("encoder_mlp_layers", {"encoder": OWN, "encoder_mlp_layers": (8,)}),
    ("encoder_per_key", {"encoder": OWN, "encoder_per_key": True}),
    ("encoder_entity_size", {"encoder_entity_size": 30}),
    ("encoder_entity_size", {"encoder": OWN, "encoder_entity_size": 64}),
    ("encoder_entity_heads", {"encoder": OWN, "encoder_entity_heads": 2}),
    ("encoder_entity_layers", {"encoder": OWN, "encoder_entity_layers": 2}),
    ("obs_layout", {"obs_layout": ("camera=hcw",)}),
    ("obs_layout", {"obs_layout": ("camera", "hwc")}),
    ("core_inputs", {"core_inputs": ("action",)}),
    ("core_inputs", {"core_inputs": ("actions",), "use_rnn": True}),
    ("core_inputs", {"core_inputs": ("action",), "use_rnn": True, "model": OWN}),
    ("use_layer_norm", {"use_layer_norm": True, "use_spectral_norm": True}),
    ("encoder_conv_architecture", {"encoder": OWN, "encoder_conv_architecture": "resnet_impala"}),
    ("encoder_conv_mlp_layers", {"encoder": OWN, "encoder_conv_mlp_layers": (8,)}),
    ("one_hot_max", {"model": OWN, "one_hot_max": 8}),
    ("obs_embedding_size", {"encoder": OWN, "obs_embedding_size": 8}),
    ("obs_subtract_mean", {"encoder": OWN, "obs_subtract_mean": 3.0}),
    ("obs_scale", {"encoder": OWN, "obs_scale": 255.0}),
    ("adaptive_stddev", {"model": OWN, "adaptive_stddev": False}),
    ("initial_stddev", {"model": OWN, "initial_stddev": 0.1}),
    ("continuous_tanh_scale", {"model": OWN, "adaptive_stddev": False, "continuous_tanh_scale": 2.0}),
    ("nonlinearity", {"model": OWN, "nonlinearity": "tanh"}),
    ("policy_initialization", {"model": OWN, "policy_initialization": "xavier_uniform"}),
    ("policy_init_gain", {"model": OWN, "policy_init_gain": 3.0}),
    ("use_layer_norm", {"model": OWN, "use_layer_norm": True}),
    ("use_spectral_norm", {"model": OWN, "use_spectral_norm": True}),
    ("rnn_type", {"core": OWN, "use_rnn": True, "rnn_type": "lstm"}),
    ("rnn_size", {"core": OWN, "use_rnn": True, "rnn_size": 8}),
    ("rnn_num_layers", {"core": OWN, "use_rnn": True, "rnn_num_layers": 2}),
    ("decoder_mlp_layers", {"decoder": OWN, "decoder_mlp_layers": (8,)}),
    ("model_kwargs", {"model_kwargs": {"size": 8}}),
    ("freeze", {"freeze": ("head",)}),
    ("freeze", {"freeze": ("encoder", "policy", "value")}),
    ("freeze", {"freeze": ("encoder", "core", "policy", "value"), "use_rnn": True, "freeze_until": 100}),
    ("freeze_until", {"freeze_until": 100}),
    ("init_parts", {"init_from": "run", "init_parts": ("head",)}),
    ("init_parts", {"init_parts": ("encoder",)}),
    ("eval_interval_sec", {"eval_interval_sec": 60.0, "serial_mode": True}),
    ("eval_interval_sec", {"eval_interval_sec": 60.0, "benchmark": True}),
    ("observers", {"observers": ("my_hooks:",)}),
    ("wrapper", {"wrapper": ("my_wrappers:Noisy", "Quiet")}),
    ("obs_resize", {"obs_resize": (84,)}),
    *(("flatten_obs", {"flatten_obs": True, keys: ("a",)}) for keys in ("obs_keys", "ignore_obs_keys")),
    (
        "flatten_obs",
        {"flatten_obs": True, "actor_obs_keys": ("a",), "actor_critic_share_weights": False},
    ),
    ("after_train_step", {"after_train_step": ("my_hooks:look:twice",)}),
    ("torch_compile", {"torch_compile": True, "microbatch_size": 512}),
    ("torch_compile", {**POPULATION, "torch_compile": True}),
    ("torch_compile", {"torch_compile": True, "use_rnn": True}),
    ("train_policies", {"train_policies": (3,)}),
    ("train_policies", {"num_policies": 4, "train_policies": (1, 1)}),
    ("policy_mapping", {"num_policies": 4, "policy_mapping": "mine"}),
    ("policy_mapping", {"num_policies": 3, "policy_mapping": "red_*=0,blue_*=1"}),
    ("with_pbt", {**POPULATION, "train_policies": (1,)}),
    ("pbt_replace_fraction", {**POPULATION, "pbt_replace_fraction": 0.9}),
    ("pbt_dir", MEMBER),
    ("pbt_dir", {**MEMBER, **POPULATION}),
    ("pbt_dir", {**MEMBER, "with_pbt": True, "pbt_member": None}),
    ("pbt_dir", {**MEMBER, "with_pbt": True, "opponent_pool": 4}),
    ("pbt_perturb_min", {**POPULATION, "pbt_perturb_min": 2.0}),
    ("pbt_hyperparameters", {**POPULATION, "pbt_hyperparameters": {"rollout": {}}}),
    ("pbt_hyperparameters", {**POPULATION, "pbt_hyperparameters": dict.fromkeys(MUTATED)}),
    ("pbt_hyperparameters", {**POPULATION, "pbt_hyperparameters": {"gae_lambda": {}}}),
    (
        "pbt_optimize_batch_size",
        {**POPULATION, "pbt_optimize_batch_size": True, "num_batches_to_accumulate": 0, "policy_mapping": "split"}
        | {"num_workers": 2},
    ),
    ("policy_mapping", {"num_policies": 4, "num_batches_to_accumulate": 0, "policy_mapping": "env"}),
    ("policy_mapping", {"num_policies": 3, "num_batches_to_accumulate": 0, "num_workers": 2, "inference": "central"}),
    ("policy_mapping", {"num_policies": 6, "async_rl": False, "num_workers": 2, "num_envs_per_worker": 16}),
    ("opponent_pool", {"opponent_pool": 4, "num_policies": 2}),
    ("sync_every", {"sync_every": 20, "use_spectral_norm": True}),
    ("opponent_pool", {"opponent_pool": 4, "num_batches_to_accumulate": 0}),
    ("opponent_pool", {"opponent_pool": 4, "save_milestones_sec": 60}),
    ("learning_rate", {**POPULATION, "learning_rate": 0.5}),
    ("exploration_loss_coeff", {**POPULATION, "exploration_loss_coeff": 2.0}),
    ("value_loss_coeff", {**POPULATION, "value_loss_coeff": 1000.0}),
    ("max_grad_norm", {**POPULATION, "max_grad_norm": 1e6}),
    ("ppo_clip_ratio", {**POPULATION, "ppo_clip_ratio": 1e-3}),
    ("ppo_clip_value", {**POPULATION, "ppo_clip_value": 1000.0}),
    ("gamma", {**POPULATION, "pbt_optimize_gamma": True, "gamma": 1.0}),
    (
        "pbt_mix_policies_in_one_env",
        {"num_policies": 4, "policy_mapping": "split", "pbt_mix_policies_in_one_env": False},
    ),
    ("pbt_hyperparameters", {"pbt_hyperparameters": {"adam_eps": {}}}),
]
