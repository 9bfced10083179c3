"""Adds GRPO to a plain Megatron-core training loop: everything of megarl's is the forward step and the batch.

Run it on any machine: `python docs/examples/grpo_in_plain_megatron.py`. The "rollouts" are random tokens, and the
reward is the share of even ones, so that the loop needs no engine and still learns something.
"""

# Before megatron.core: where there is no GPU, this makes it importable.
import megarl.megatron  # noqa: F401

# isort: split
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

from megarl.megatron.batch import pad_batch
from megarl.megatron.forward import policy_forward_step, scoring_forward_step
from megarl.objectives import ADVANTAGES, GRPO, Rewarded
from megarl.platform.layers.spec import gpt_block_spec
from megarl.platform.platform import current

VOCAB, PROMPTS, GROUP, LENGTH = 16, 8, 8, 12


def sample_responses(model: torch.nn.Module, prompt: list[int]) -> torch.Tensor:
    """PROMPTS * GROUP responses, token by token and without a cache: the slowest engine there is."""
    ids = torch.tensor(prompt, device=current().device).repeat(PROMPTS * GROUP, 1)
    with torch.no_grad():
        for _ in range(LENGTH):
            logits = model(ids, torch.arange(ids.shape[1], device=ids.device).expand_as(ids), None)
            ids = torch.cat([ids, torch.multinomial(logits[:, -1].softmax(-1), 1)], dim=1)
    return ids[:, len(prompt) :]


def main(steps: int = 30) -> list[float]:
    """Trains and returns the mean reward of each step."""
    current().use_device()
    dist.init_process_group(current().dist_backend, store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=2, use_cpu_initialization=True, add_bias_linear=False,
        normalization="RMSNorm", calculate_per_token_loss=True, gradient_accumulation_fusion=False, hidden_dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    model = GPTModel(config, gpt_block_spec(config), VOCAB, LENGTH + 1, position_embedding_type="rope")
    model = model.to(current().device)
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    config.finalize_model_grads_func = finalize_model_grads
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=3e-3, weight_decay=0.0), [wrapped])
    train = policy_forward_step(GRPO(), vocab_size=VOCAB)
    rewards_by_step = []
    for _ in range(steps):
        responses = sample_responses(model, prompt=[0])
        rewards_B = (responses % 2 == 0).float().mean(dim=1)
        prompt_ids = [f"prompt {row // GROUP}" for row in range(len(responses))]
        batch = pad_batch([[0]] * len(responses), responses.tolist(), current().device)
        advantages_BT = ADVANTAGES["grpo"](Rewarded(rewards_B, prompt_ids, batch.mask_BT, batch.mask_BT.any(dim=1)))
        schedule = {"model": [wrapped], "num_microbatches": 1, "seq_length": LENGTH, "micro_batch_size": len(batch)}
        score = scoring_forward_step(vocab_size=VOCAB)
        run = get_forward_backward_func()
        with torch.no_grad():
            [old_BT] = run(forward_step_func=score, data_iterator=iter([batch]), forward_only=True,
                           collect_non_loss_data=True, **schedule)  # fmt: skip
        batch = batch.with_rollout(advantages_BT, old_log_probs_BT=old_BT).with_totals()
        wrapped.zero_grad_buffer()
        run(forward_step_func=train, data_iterator=iter([batch]), forward_only=False, **schedule)
        optimizer.step()
        rewards_by_step.append(rewards_B.mean().item())
    return rewards_by_step


if __name__ == "__main__":
    for step, reward in enumerate(main(), start=1):
        print(f"step {step:2d}  mean reward {reward:.3f}")
