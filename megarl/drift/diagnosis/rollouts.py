"""What a diagnosis looks at: tokens, and the log-probs that both sides report of them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """The distribution that log-probs are of.

    Attributes:
        temperature: divides the logits.
        top_p: of what top_k leaves, the fewest likeliest tokens whose probability reaches it; 1 for all.
        top_k: the likeliest tokens, so many; 0 for all.
        banned: tokens without probability.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    banned: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rollouts:
    """B sequences of prompt and response, padded on the right to T tokens; N tokens of responses in all.

    Attributes:
        ids_BT: int64, the trainer's tokens.
        prompt_lengths_B: int64, at least 1.
        lengths_B: int64, of prompt and response.
        engine_log_probs_BT: of each token of a response as the engine reported it, in nats; NaN where it gave none.
        trainer_log_probs_BT: likewise by the trainer.
        sampling: what the trainer believes the engine samples from, and scores with.
        stop_token_id: what ends a response; None where it is not known.
        engine_ids_BT: the engine's own tokens, where it tells them, padded as the trainer's are; None otherwise.
        engine_lengths_B: of those.
        experts_BTLK: int64, the experts that the engine sent each token to, by layer; -1 where it does not say.
    """

    ids_BT: Tensor
    prompt_lengths_B: Tensor
    lengths_B: Tensor
    engine_log_probs_BT: Tensor
    trainer_log_probs_BT: Tensor
    sampling: Sampling = Sampling()
    stop_token_id: int | None = None
    engine_ids_BT: Tensor | None = None
    engine_lengths_B: Tensor | None = None
    experts_BTLK: Tensor | None = None

    @cached_property
    def mask_BT(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """bool, the responses' tokens."""
        columns_T = torch.arange(self.ids_BT.shape[1])
        return (columns_T >= self.prompt_lengths_B[:, None]) & (columns_T < self.lengths_B[:, None])

    @cached_property
    def rows_N(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """The sequence of each token of a response."""
        return self.mask_BT.nonzero()[:, 0]

    @cached_property
    def targets_N(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """The tokens of the responses."""
        return self.ids_BT[self.mask_BT]

    @cached_property
    def engine_N(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """The engine's log-probs, fp64."""
        return self.engine_log_probs_BT[self.mask_BT].double()

    @cached_property
    def trainer_N(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """The trainer's log-probs, fp64."""
        return self.trainer_log_probs_BT[self.mask_BT].double()
