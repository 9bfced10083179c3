"""Responses of a dump, end to end: what every reader and importer makes of its files."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from megarl.dumps.errors import DumpError


@dataclass(frozen=True)
class Key:
    """Which response it is. Attributes: step: RL step. problem_id: the prompt. sample: number in the group."""

    step: int
    problem_id: str
    sample: int

    def __str__(self) -> str:
        return f"step {self.step}, problem {self.problem_id}, sample {self.sample}"


@dataclass(frozen=True)
class Sampled:
    """How a response was sampled, each None where the dump does not say.

    Attributes:
        temperature: divided the logits.
        top_p: 1 for the whole vocabulary.
        top_k: 0 for the whole vocabulary.
        stop_token_id: the token that ends a response.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True)
class Responses:
    """B responses of N tokens in all, one after the other.

    Attributes:
        keys: which they are.
        lengths_B: int64, tokens of each; may be 0.
        token_ids_N: int64.
        trainer_log_probs_N: fp64, nats, by the trainer before the step's update; not finite where it has none.
        rollout_log_probs_N: fp64, nats, by the engine; not finite where it gave none.
        generated_N: bool, the tokens that the engine sampled; the others, such as a tool's output, are never measured.
        rewards_B: fp64, NaN where not known.
        prompts: as text, "" where not known.
        texts: the responses as text, likewise.
        replica_N: int64, the server that sampled each token, from 0; -1 where it is not known.
        age_N: int64, updates that the weights which sampled it are behind the step's; -1 where it is not known.
        prompt_ids: tokens of each response's prompt, None where the dump has none; empty where they were not read.
        sampled: how each was sampled; empty where that was not read.
    """

    keys: Sequence[Key]
    lengths_B: Tensor
    token_ids_N: Tensor
    trainer_log_probs_N: Tensor
    rollout_log_probs_N: Tensor
    generated_N: Tensor
    rewards_B: Tensor
    prompts: Sequence[str]
    texts: Sequence[str]
    replica_N: Tensor
    age_N: Tensor
    prompt_ids: Sequence[Sequence[int] | None] = ()
    sampled: Sequence[Sampled] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def first(self, count: int) -> "Responses":
        """Its first responses, so many."""
        tokens = int(self.lengths_B[:count].sum())
        cut = {field.name: getattr(self, field.name) for field in fields(self)}
        return Responses(**{name: value[: tokens if name.endswith("_N") else count] for name, value in cut.items()})

    @property
    def usable_N(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """Bool: generated, and both log-probs are finite."""
        return self.generated_N & self.trainer_log_probs_N.isfinite() & self.rollout_log_probs_N.isfinite()

    @property
    def log_ratio_trainer_over_rollout_N(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """Delta in nats, fp64; 0 where not usable."""
        return torch.where(self.usable_N, self.trainer_log_probs_N - self.rollout_log_probs_N, 0.0)

    @property
    def row_N(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """Int64, the response that each token is of."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths_B)

    @property
    def position_N(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """Int64, the token's position in its response, from 0."""
        begins_B = self.lengths_B.cumsum(dim=0) - self.lengths_B
        return torch.arange(len(self.token_ids_N)) - begins_B[self.row_N]


def check_equal_lengths(path: Path, keys: Sequence[Key], tokens: str, lengths: dict[str, np.ndarray]) -> None:
    """Refuses responses whose per-token lists do not have one element a token.

    Args:
        path: of the dump, for the message.
        keys: of the B responses.
        tokens: name of the list of token ids.
        lengths: of each list by its name, int [B]; `tokens` is one of them.

    Raises:
        DumpError: naming the first such response.
    """
    for name, lengths_B in lengths.items():
        differing = np.flatnonzero(lengths_B != lengths[tokens])
        if len(differing):
            row = differing[0]
            raise DumpError(
                f"{path} has {lengths_B[row]} {name} for {lengths[tokens][row]} {tokens} at {keys[row]}; "
                "each token needs one: write the dump again."
            )


def check_no_nan(path: Path, keys: Sequence[Key], row_N: Tensor, named: dict[str, Tensor]) -> None:
    """Refuses NaN.

    Args:
        path: of the dump, for the message.
        keys: of the B responses.
        row_N: int64, the response that each token is of.
        named: columns [N]; what a file may lack is not NaN here.

    Raises:
        DumpError: naming the column and the first response.
    """
    for name, values_N in named.items():
        places = values_N.isnan().nonzero().flatten()
        if len(places):
            raise DumpError(
                f"{path} has {len(places)} NaN among its {name}, the first at {keys[int(row_N[places[0]])]}; no drift "
                "can be told from them: find where that model's log-probs become NaN, or leave these responses out."
            )
