"""The supervised warm start: imitate the source's demonstrations."""

from megarl.config.errors import DataError
from megarl.data.tokenizer import encode
from megarl.loop.divergence import count_nonfinite
from megarl.loop.run import Run
from megarl.loop.timed import timed
from megarl.megatron.batch import TrainBatch, pad_batch
from megarl.megatron.micro_batches import micro_batch_size
from megarl.megatron.schedule import scale_metrics
from megarl.objectives.sft import SFT
from megarl.platform.platform import current


def sft_step(run: Run) -> dict[str, float]:
    """One optimizer step on the next demonstrations. Collective.

    Returns:
        The step's metrics.
    """
    seconds: dict[str, float] = {}
    with timed(seconds, "step"):
        batch = _next_batch(run)
        update = run.policy.update(batch, SFT(), micro_batch_size=micro_batch_size(run.recipe.sft))
    count_nonfinite(run, update)
    return {
        **({} if update.nonfinite else {"sft/loss": update.loss}),
        **({} if update.skipped else {"sft/grad_norm": update.grad_norm}),
        "sft/nonfinite_updates": float(update.nonfinite),
        **scale_metrics("sft", [update]),
        "lr": update.lr,
        "seconds/step": seconds["step"],
        "tokens_per_s/update": int(batch.mask_BT.sum()) / seconds["step"],
        **update.metrics,
    }


def _next_batch(run: Run) -> TrainBatch:
    config, state = run.recipe.sft, run.state
    prompts, responses = [], []
    for index in range(state.demonstrations_drawn, state.demonstrations_drawn + config.batch_size):
        problem, response = run.source.demonstration(index, state.step / config.steps)
        prompts.append(encode(run.tokenizer, problem.prompt))
        responses.append([*encode(run.tokenizer, response), run.stop_token_id])
        tokens = len(prompts[-1]) + len(responses[-1])
        if tokens > run.recipe.model.max_position_embeddings:
            raise DataError(
                f"the demonstration of {problem.id} has {tokens} tokens, more than model.max_position_embeddings="
                f"{run.recipe.model.max_position_embeddings}; shorten it or raise the latter."
            )
    state.demonstrations_drawn += config.batch_size
    return pad_batch(prompts, responses, current().device)
