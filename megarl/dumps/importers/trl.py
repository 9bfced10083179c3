"""TRL's completions parquet (`log_completions`), with its batch's own names for ids and log-probs added.

As TRL writes it, a row has `step`, `prompt`, `completion`, a column a reward function and `advantage`: text alone.
"""

from collections.abc import Mapping
from typing import Any

from megarl.dumps.importers.row import Row, RowFormat, mask_or_all
from megarl.dumps.responses import Key


def _read(fields: Mapping[str, Any], number: int) -> Row:
    tokens = fields["completion_ids"]
    reward = fields.get("reward")
    return Row(
        key=Key(int(fields.get("step") or 0), "", number),
        token_ids=tokens,
        trainer_log_probs=fields["old_per_token_logps"],
        rollout_log_probs=fields["sampling_per_token_logps"],
        # a 0 is padding, or what a tool said
        generated=mask_or_all(fields.get("completion_mask"), tokens),
        reward=float("nan") if reward is None else float(reward),
        prompt=str(fields.get("prompt") or ""),
        text=str(fields.get("completion") or ""),
        prompt_ids=fields.get("prompt_ids"),
    )


TRL = RowFormat(
    name="TRL",
    marks=(frozenset({"prompt", "completion"}), frozenset({"completion_ids"})),
    needed=("completion_ids", "old_per_token_logps", "sampling_per_token_logps"),
    hint="add these tensors of the trainer's batch to the rows as lists, with vllm_importance_sampling_correction on",
    read=_read,
)
