"""A step's responses as a rollout dump."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from megarl import __version__
from megarl.config.load import recipe_hash
from megarl.data.fingerprint import token_texts, vocabulary_fingerprint
from megarl.dumps.schema import SCHEMA, Header
from megarl.loop.rollouts import Rollouts
from megarl.loop.run import Run
from megarl.megatron.batch import TrainBatch

TOKENS_A_GROUP = 2**20
"""Of a row group, padding included: what a writer holds beside the batch."""


def dump_step(run: Run, rollouts: Rollouts, generated_BT: Tensor, batch: TrainBatch) -> None:
    """Writes all responses of the step to come on the main rank, where the recipe asks for this step's.

    Args:
        run: its state is the one before the step.
        rollouts: the step's.
        generated_BT: bool, the tokens of the responses.
        batch: the step's with advantages; its own mask may be smaller.

    Raises:
        DumpError: the dump cannot be written.
    """
    every, step = run.recipe.observe.dump_every, run.state.step + 1
    if not run.layout.is_main or not every or step % every:
        return
    header = Header(
        run=run.recipe.name,
        step=step,
        recipe_hash=recipe_hash(run.recipe),
        tokenizer=vocabulary_fingerprint(run.tokenizer),
        engine=run.recipe.rollout.engine,
        precision=run.recipe.precision.dtype,
        megarl=__version__,
    )
    ids = batch.targets_BT[generated_BT].unique().tolist()
    run.journal.dump(header, token_texts(run.tokenizer, ids), _groups(run, rollouts, generated_BT, batch, step))


def _groups(
    run: Run, rollouts: Rollouts, generated_BT: Tensor, batch: TrainBatch, step: int
) -> Iterator[pa.RecordBatch]:
    size = max(1, TOKENS_A_GROUP // generated_BT.shape[1])
    for begin in range(0, len(batch), size):
        rows = slice(begin, begin + size)
        columns = {
            **_of_responses(run, rollouts, rows, step),
            **_of_tokens(batch[rows], generated_BT[rows]),
        }
        yield pa.record_batch([columns[name].cast(SCHEMA.field(name).type) for name in SCHEMA.names], schema=SCHEMA)


def _of_responses(run: Run, rollouts: Rollouts, rows: slice, step: int) -> dict[str, pa.Array]:
    completions = rollouts.completions[rows]
    count, sampling = len(completions), run.sampling()
    same = {
        "step": step,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_new_tokens": sampling.max_new_tokens,
        "stop_token_id": sampling.stop_token_id,
    }
    columns: dict[str, Sequence[Any]] = {
        "problem_id": [completion.request.problem_id for completion in completions],
        "sample": [completion.request.sample for completion in completions],
        "prompt": [problem.prompt for problem in rollouts.problems[rows]],
        "response": rollouts.texts[rows],
        "prompt_ids": [completion.request.prompt_ids for completion in completions],
        "versions": [[vars(span) for span in completion.versions] for completion in completions],
        "finish_reason": [completion.finish_reason for completion in completions],
        "reward": rollouts.rewards[rows],
        "task_reward": rollouts.task_rewards[rows],
    }
    types = {name: SCHEMA.field(name).type for name in (*columns, *same)}
    return {
        **{name: pa.array(values, types[name]) for name, values in columns.items()},
        **{name: pa.array([value] * count, types[name]) for name, value in same.items()},
    }


def _of_tokens(batch: TrainBatch, generated_BT: Tensor) -> dict[str, pa.Array]:
    """The lists with an element a token of the response; an engine's log-prob that is none is null."""
    trained_BT = batch.mask_BT if batch.correction_keep_BT is None else batch.mask_BT & batch.correction_keep_BT
    ends_B = generated_BT.sum(dim=1).cumsum(dim=0)
    offsets = pa.array(torch.cat([ends_B.new_zeros(1), ends_B]).int().cpu().numpy())

    def ragged(values_BT: Tensor, *, nan_is_none: bool = False) -> pa.Array:
        values = pa.array(values_BT[generated_BT].cpu().numpy(), from_pandas=nan_is_none)
        return pa.ListArray.from_arrays(offsets, values)

    assert batch.old_log_probs_BT is not None and batch.rollout_log_probs_BT is not None
    assert batch.advantages_BT is not None
    reference = batch.reference_log_probs_BT
    return {
        "response_ids": ragged(batch.targets_BT),
        "trained": ragged(trained_BT),
        "old_log_probs": ragged(batch.old_log_probs_BT),
        "rollout_log_probs": ragged(batch.rollout_log_probs_BT, nan_is_none=True),
        "reference_log_probs": pa.nulls(len(batch)) if reference is None else ragged(reference),
        "advantages": ragged(batch.advantages_BT),
    }
