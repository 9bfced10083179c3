"""What `megarl drift measure` asks an engine: prompts, and how to answer them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from megarl.config.errors import DataError
from megarl.config.refusal import in_words
from megarl.config.schema import Recipe
from megarl.data.registry import build_source
from megarl.data.rows import read_texts
from megarl.rollout.types import Request, SamplingParams

_STREAM = "drift-measure"


@dataclass(frozen=True)
class Asked:
    """What the command line says beside the recipe.

    Attributes:
        prompts: a text file with a prompt a line, or JSONL or parquet with the recipe's prompt column; None for the
            recipe's own training prompts.
        responses: to generate.
        temperature: that the engine is asked for where it is not the recipe's; likewise the next two.
        top_p: see there.
        top_k: see there.
        older: folders of weights from before the trainer's, newest first, in Hugging Face layout.
        keep_weights: whether the engine answers with the weights that it has.
    """

    prompts: Path | None
    responses: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    older: tuple[Path, ...] = ()
    keep_weights: bool = False

    def sampling(self, recipe: Recipe, stop_token_id: int) -> SamplingParams:
        """Of the engine."""
        own = recipe.rollout
        return SamplingParams(
            own.temperature if self.temperature is None else self.temperature,
            own.max_new_tokens,
            stop_token_id,
            top_p=own.top_p if self.top_p is None else self.top_p,
            top_k=own.top_k if self.top_k is None else self.top_k,
        )

    def requests(self, recipe: Recipe, encoded: Callable[[str], list[int]]) -> list[Request]:
        """So many, the prompts in turn.

        Raises:
            DataError: the prompts cannot be read, or one is empty or leaves no room for a response.
        """
        if self.prompts is None:
            source = build_source(recipe)
            texts = [source.training(number).prompt for number in range(self.responses)]
        else:
            lines = _lines(self.prompts, recipe.data.prompt_column)
            texts = [lines[number % len(lines)] for number in range(self.responses)]
        longest, requests = recipe.model.max_position_embeddings, []
        for number, text in enumerate(texts):
            ids = encoded(text)
            if not 0 < len(ids) < longest:
                raise DataError(
                    f"the prompt {in_words(text)} has {len(ids)} tokens, and a response needs a token before it and "
                    f"one behind it within model.max_position_embeddings={longest}; change or remove the prompt."
                )
            requests.append(Request(str(number), 0, tuple(ids), _STREAM))
        return requests


def _lines(file: Path, column: str) -> list[str]:
    """A text file's lines, or a column of JSONL or parquet."""
    if file.suffix in (".jsonl", ".parquet"):
        return [text for _, (text,) in read_texts("--prompts", str(file), {"data.prompt_column": column})]
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"--prompts={file} cannot be read as text ({error}); give a prompt a line.") from error
    if not lines:
        raise DataError(f"--prompts={file} is empty; give a prompt a line, or .jsonl or .parquet with {column}.")
    return lines
