"""prime-rl's token export: a JSON object a trained sequence, prompt and response in the same lists.

Its `train_rollouts.jsonl` has the engine's log-probs and not the trainer's.
"""

from collections.abc import Mapping
from typing import Any

from megarl.dumps.importers.row import Row, RowFormat
from megarl.dumps.responses import Key


def _read(fields: Mapping[str, Any], number: int) -> Row:
    mask = fields["loss_mask"]
    # the prompt is what stands before the first token with a loss
    begin = next((index for index, trained in enumerate(mask) if trained), len(mask))
    rewards = fields.get("rewards") or []
    reward = next((value for value in rewards[begin:] if value is not None), float("nan"))
    return Row(
        key=Key(
            int(fields.get("export_step", fields.get("step", 0))),
            str(fields.get("env_name") or ""),
            int(fields.get("export_sequence_idx", number)),
        ),
        token_ids=fields["token_ids"][begin:],
        trainer_log_probs=fields["trainer_logprobs"][begin:],
        rollout_log_probs=fields["inference_logprobs"][begin:],
        generated=mask[begin:],
        reward=float(reward),
        prompt="",
        text="",
        prompt_ids=fields["token_ids"][:begin],
    )


PRIME_RL = RowFormat(
    name="prime-rl",
    marks=(
        frozenset({"token_ids", "inference_logprobs"}),
        frozenset({"token_ids", "trainer_logprobs"}),
        frozenset({"trajectory", "reward"}),
    ),
    needed=("token_ids", "loss_mask", "trainer_logprobs", "inference_logprobs"),
    hint="turn on its trainer's token export and take that file",
    read=_read,
)
