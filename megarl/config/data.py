"""Recipe sections for prompts, answers and rewards."""

from dataclasses import dataclass
from typing import Any, Optional

from megarl.config.fields import key


@dataclass
class DataConfig:
    """Where prompts and answers come from."""

    source: str = key(
        "chain_arithmetic",
        "'chain_arithmetic' (generated sums with worked solutions), 'reasoning_gym', or 'file' (JSONL or parquet).",
        choices=("chain_arithmetic", "reasoning_gym", "file"),
    )
    path: Optional[str] = key(None, "Training file (.jsonl or .parquet), for source=file.")
    eval_path: Optional[str] = key(
        None, "Evaluation file, for source=file; null keeps the last `eval_prompts` rows of `path` out of training."
    )
    prompt_column: str = key("prompt", "Column of the prompt, for source=file.")
    answer_column: str = key("answer", "Column of the reference answer, for source=file.")
    demonstration_column: Optional[str] = key(None, "Column of the response that SFT imitates, for source=file.")
    prompt_template: str = key("{prompt}", "How a prompt is written for the model; holds {prompt} once.")
    eval_prompts: int = key(64, "Prompts kept for evaluation, never trained on.", low=1, high=100_000)
    options: dict[str, Any] = key(factory=dict, doc="Settings of the source itself; see docs/data.md.")


@dataclass
class RewardConfig:
    """What a response is worth."""

    name: str = key(
        "boxed_answer",
        "A registered reward (see docs/rewards.md) or the dotted path of a callable (response, problem) -> float.",
    )
