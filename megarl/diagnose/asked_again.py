"""An engine that is asked for the same responses again, alone: its own floor."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from megarl.diagnose.same_tokens import log_probs_of_same_tokens
from megarl.drift.diagnosis import Rollouts
from megarl.rollout.engine import Engine
from megarl.rollout.types import Completion, Request, SamplingParams


class AskedAgain:
    """Implements `megarl.drift.diagnosis.EngineSide` over an engine whose responses are keyed by their requests.

    It tells of the same tokens alone: see `log_probs_of_same_tokens`.
    """

    def __init__(
        self, engine: Engine, requests: Sequence[Request], together: Sequence[Completion], sampling: SamplingParams
    ) -> None:
        """Args: engine, sampling: as before. requests, together: what it was asked at once, and its answers."""
        self._engine, self._sampling = engine, sampling
        self._requests, self._together = list(requests), list(together)

    def log_probs(self, rollouts: Rollouts, rows_at_once: int) -> Tensor | None:
        """See `EngineSide`; of one row at once, or of all."""
        if rows_at_once > 1:
            return rollouts.engine_N
        found: list[float] = []
        for request, before in zip(self._requests, self._together, strict=True):
            (again,) = self._engine.generate([request], self._sampling)
            found += log_probs_of_same_tokens(before, again)
        return torch.tensor(found, dtype=torch.float64)

    def hidden_states(self, rollouts: Rollouts) -> list[Tensor] | None:
        """See `EngineSide`."""
        return None

    def digests(self) -> Mapping[str, str] | None:
        """See `EngineSide`: a sync has compared them."""
        return None
