"""The words of TRL, transformers and verl for our options, for the hint where an option is unknown."""

from __future__ import annotations

from collections.abc import Mapping

_LR = ("optim.lr", "warmstart.lr", "critic.lr", "simulator.lr")
_LENGTH = ("rollout.action_tokens", "rollout.prediction_tokens")
_CLIP = ("loss.clip_low", "loss.clip_high")
_MODEL = ("policy.path",)
_BATCH = ("rollout.num_groups", "rollout.group_size")
_MICRO = ("optim.micro_batch_tokens",)
_KL = ("loss.kl",)
_ITERATIONS = ("train.iterations",)
_GROUP = ("rollout.group_size",)
_DEVICES = (
    "a process takes the GPU that CUDA_VISIBLE_DEVICES leaves it, else the CPU; for several, start it by torchrun or "
    "deepspeed"
)

WORDS: Mapping[str, tuple[str, ...] | str] = {
    # The group and the batch.
    **dict.fromkeys(("num_generations", "n", "num_samples", "num_rollouts", "rollouts_per_example", "group_n"), _GROUP),
    **dict.fromkeys(("batch_size", "train_batch_size", "per_device_train_batch_size", "generation_batch_size"), _BATCH),
    "per_device_eval_batch_size": ("rollout.eval_batch",),
    "eval_batch_size": ("rollout.eval_batch",),
    **dict.fromkeys(("mini_batch_size", "ppo_mini_batch_size", "num_mini_batches"), ("optim.minibatches",)),
    **dict.fromkeys(("gradient_accumulation_steps", "micro_batch_size", "ppo_micro_batch_size"), _MICRO),
    **dict.fromkeys(("ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu", "max_tokens_per_gpu"), _MICRO),
    # Lengths.
    **dict.fromkeys(("max_completion_length", "max_new_tokens", "max_tokens", "response_length"), _LENGTH),
    "max_response_length": _LENGTH,
    **dict.fromkeys(("max_length", "max_seq_length", "max_model_len", "max_prompt_length"), ("policy.context",)),
    **dict.fromkeys(("max_turns", "max_episode_steps", "max_env_steps"), ("env.kwargs.max_steps", "rollout.turns")),
    # The length of training.
    "max_steps": ("train.iterations", "env.kwargs.max_steps"),
    **dict.fromkeys(("num_train_epochs", "total_epochs", "total_training_steps", "steps", "num_steps"), _ITERATIONS),
    **dict.fromkeys(("num_iterations", "ppo_epochs", "num_ppo_epochs"), ("optim.epochs",)),
    **dict.fromkeys(("save_steps", "save_freq", "save_interval"), ("train.checkpoint_every",)),
    **dict.fromkeys(("save_total_limit", "max_actor_ckpt_to_keep"), ("train.keep_checkpoints",)),
    **dict.fromkeys(("eval_steps", "test_freq", "eval_freq", "eval_interval"), ("train.evaluate_every",)),
    # The optimizer.
    **dict.fromkeys(("learning_rate", "actor_lr", "lr_rate"), _LR),
    "critic_lr": ("critic.lr",),
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler", "scheduler", "warmup_style"), ("optim.schedule",)),
    **dict.fromkeys(("warmup_ratio", "lr_warmup_steps", "lr_warmup_steps_ratio"), ("optim.warmup_steps",)),
    **dict.fromkeys(("grad_clip", "clip_grad", "gradient_clipping", "max_norm"), ("optim.max_grad_norm",)),
    "optim": ("warmstart.optimizer",),
    # Advantages and loss.
    **dict.fromkeys(("adv_estimator", "algorithm", "algo", "trainer", "advantage_estimator"), ("method",)),
    **dict.fromkeys(("lam", "lambda", "lambd", "gae_lam"), ("estimator.gae_lambda",)),
    "discount": ("estimator.gamma",),
    **dict.fromkeys(("beta", "kl_coef", "kl_coeff", "kl_loss_coef", "init_kl_coef", "kl_beta", "use_kl_loss"), _KL),
    **dict.fromkeys(("cliprange", "clip_range", "clip_ratio", "clip_eps", "clip"), _CLIP),
    **dict.fromkeys(("epsilon", "clip_ratio_low", "clip_low", "eps_clip"), ("loss.clip_low",)),
    **dict.fromkeys(("epsilon_high", "clip_ratio_high", "eps_clip_high"), ("loss.clip_high",)),
    **dict.fromkeys(("scale_rewards", "norm_adv_by_std_in_grpo"), ("estimator.norm",)),
    **dict.fromkeys(("loss_type", "loss_agg_mode"), ("loss.aggregation",)),
    "importance_sampling_level": ("loss.importance_level",),
    **dict.fromkeys(("tis_imp_ratio_cap", "vllm_importance_sampling_cap"), ("loss.importance_cap",)),
    **dict.fromkeys(("reward_weights", "reward_funcs", "reward_function"), ("estimator.rewards",)),
    **dict.fromkeys(("mu", "step_advantage_w"), ("estimator.alpha",)),
    **dict.fromkeys(("max_num_gen_batches", "filter_groups"), ("rollout.dynamic_sampling_rounds",)),
    "rollout_filter_ratio": ("rollout.keep_groups",),
    # The model and its sampler.
    **dict.fromkeys(("model", "model_name", "model_name_or_path", "model_path", "model_id", "base_model"), _MODEL),
    **dict.fromkeys(("torch_dtype", "bf16", "fp16", "mixed_precision", "precision"), ("policy.dtype",)),
    **dict.fromkeys(("tf32", "allow_tf32", "float32_matmul_precision"), ("policy.matmul_precision",)),
    **dict.fromkeys(("use_vllm", "vllm_mode", "rollout_backend", "name"), ("rollout.backend",)),
    **dict.fromkeys(("gpu_memory_utilization", "vllm_gpu_memory_utilization"), ("vllm.memory",)),
    **dict.fromkeys(
        ("max_num_seqs", "vllm_max_num_seqs", "enforce_eager", "tensor_parallel_size", "tensor_parallel"),
        ("vllm.extra",),
    ),
    **dict.fromkeys(("do_sample", "val_temperature", "eval_temp"), ("rollout.eval_temperature",)),
    **dict.fromkeys(("lora_r", "lora_rank", "r", "use_peft"), ("lora.rank",)),
    "lora_alpha": ("lora.alpha",),
    **dict.fromkeys(
        ("gradient_checkpointing", "enable_gradient_checkpointing"), ("deepspeed.activation_checkpointing",)
    ),
    **dict.fromkeys(("torch_compile", "use_torch_compile"), ("optim.compile",)),
    **dict.fromkeys(("zero", "fsdp"), ("deepspeed.zero_stage",)),
    "stage": ("deepspeed.zero_stage", "method"),
    **dict.fromkeys(("param_offload", "offload_param", "optimizer_offload"), ("deepspeed.extra",)),
    # The run.
    **dict.fromkeys(("output_dir", "default_local_dir", "logging_dir", "save_dir", "out"), ("run_dir",)),
    **dict.fromkeys(("data_seed", "random_seed"), ("seed",)),
    **dict.fromkeys(("project_name", "wandb_project"), ("tracking.project",)),
    **dict.fromkeys(("report_to", "logger"), ("tracking.to",)),
    **dict.fromkeys(("env_id", "env_name", "environment"), ("env.id",)),
    "split": ("env.train_split", "env.eval_split"),
    **dict.fromkeys(("device", "device_map", "gpu", "cuda", "use_cpu", "no_cuda", "gpus"), _DEVICES),
    **dict.fromkeys(("n_gpus_per_node", "num_gpus", "nnodes", "num_processes", "world_size"), _DEVICES),
}
"""By a word: the options that do the same, or a sentence where there is none."""

__all__ = ["WORDS"]
