"""verl's rollout JSONL (`trainer.rollout_data_dir`), with its batch's own names for ids and log-probs added.

As verl writes it, a row has `input`, `output`, `score` and `step`: text alone.
"""

from collections.abc import Mapping
from typing import Any

from megarl.dumps.importers.row import Row, RowFormat, mask_or_all
from megarl.dumps.responses import Key


def _read(fields: Mapping[str, Any], number: int) -> Row:
    tokens = fields["responses"]
    return Row(
        key=Key(int(fields.get("step") or 0), str(fields.get("uid") or ""), number),
        token_ids=tokens,
        trainer_log_probs=fields["old_log_probs"],
        rollout_log_probs=fields["rollout_log_probs"],
        # a 0 is padding, or what a tool said
        generated=mask_or_all(fields.get("response_mask"), tokens),
        reward=float("nan") if fields.get("score") is None else float(fields["score"]),
        prompt=str(fields.get("input") or ""),
        text=str(fields.get("output") or ""),
        prompt_ids=fields.get("prompts"),
    )


VERL = RowFormat(
    name="verl",
    marks=(frozenset({"input", "output", "score"}), frozenset({"responses", "old_log_probs"})),
    needed=("responses", "old_log_probs", "rollout_log_probs"),
    hint=(
        "set actor_rollout_ref.rollout.calculate_log_probs=true and add these tensors of the batch to the rows as lists"
    ),
    read=_read,
)
