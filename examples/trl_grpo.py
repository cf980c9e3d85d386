"""Trains with TRL's GRPO on a RoleAgent environment.

    python examples/trl_grpo.py                                # a toy model and one question, in seconds
    python examples/trl_grpo.py --model Qwen/Qwen3-0.6B --env RoleAgent/ALFWorld-v0 --steps 200

The chat template must support tool calls. The toy model has random weights and a vocabulary of whole tool calls.
It learns the right answer to one question.
"""

import argparse
import json
import os
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # environment_factory may still change

import gymnasium
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl.chat_template_utils import qwen3_chat_template
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import roleagent  # noqa: F401  (registers the environments)
from roleagent.envs.adapters.trl import environment_factory, tasks_dataset


def toy_tokenizer(calls):
    """A tokenizer with one token per tool call; other words are unknown."""
    words = ["<unk>", "<pad>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(words[1:])
    for name, arguments in calls:
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        tokenizer.add_tokens([AddedToken(f"<tool_call>\n{call}\n</tool_call>", special=False, normalized=False)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<|im_end|>", padding_side="left"
    )
    made.chat_template = qwen3_chat_template
    return made


def toy_model(tokenizer, seed=0):
    """A Qwen3 of one layer with random weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def toy_calls(env_id):
    """Tool calls for the first question: a search, the right answer and wrong ones."""
    env: Any = gymnasium.make(env_id).unwrapped
    first, *others = env.task_split.task_ids[:4]
    answers = []
    for task_id in (first, *others):
        env.reset(options={"task_id": task_id})
        answers.append(env.walkthrough()[-1].removeprefix("answer[").removesuffix("]"))
    return [("search", {"query": first}), *(("answer", {"text": answer}) for answer in dict.fromkeys(answers))]


def train(model, tokenizer, env_id, tasks, steps, output, reward_funcs=None, **settings):
    """Runs some steps of GRPO and returns the trainer."""
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward_funcs,  # in addition to the environment's reward
        processing_class=tokenizer,
        train_dataset=tasks_dataset(env_id, limit=tasks),
        environment_factory=environment_factory(env_id),
        args=GRPOConfig(
            output, max_steps=steps, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, **settings
        ),
    )
    trainer.train()
    return trainer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face name or folder (default: the toy model)")
    parser.add_argument("--env", help="a Gymnasium id (default: ALFWorld, and SearchQA for the toy model)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", default="runs/trl")
    options = parser.parse_args()
    if options.model:
        env_id, tasks, tokenizer, model = options.env or "RoleAgent/ALFWorld-v0", None, None, options.model
        settings = {"num_generations": 8, "max_completion_length": 4096, "max_tool_calling_iterations": 50}
    else:
        env_id, tasks = "RoleAgent/SearchQA-v0", 1
        tokenizer = toy_tokenizer(toy_calls(env_id))
        model = toy_model(tokenizer)
        settings = {"num_generations": 16, "per_device_train_batch_size": 16, "learning_rate": 0.03}
        settings |= {"max_completion_length": 60, "max_tool_calling_iterations": 1, "use_cpu": True, "bf16": False}
    trainer = train(model, tokenizer, env_id, tasks, options.steps, options.output, **settings)
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    for entry in steps[:: max(1, len(steps) // 5)] + steps[-1:]:
        print(f"step {entry['step']:>3}: reward {entry['reward']:.2f}, tool calls {entry['tools/call_frequency']:.1f}")


if __name__ == "__main__":
    main()
