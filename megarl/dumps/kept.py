"""What each correction of megarl would leave of a dump: at its defaults, each on its own."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from megarl.drift.corrections import (
    TIS,
    Correction,
    IcePop,
    RejectGeometric,
    RejectK3,
    RejectSequences,
    RejectTokens,
    Veto,
)
from megarl.dumps.responses import Responses


@dataclass(frozen=True)
class Candidate:
    """A correction. Attributes: short: one word. name: for people. keys: of `rl.correction`. correction: itself."""

    short: str
    name: str
    keys: str
    correction: Correction


CANDIDATES = (
    Candidate("tis", "TIS, weights cut at 2", "weighting: tis", Correction(weighting=TIS())),
    Candidate("icepop", "IcePop, weights 0.5 to 5", "weighting: icepop", Correction(weighting=IcePop())),
    Candidate("token", "reject tokens, 0.9 to 1.1", "reject_token: [0.9, 1.1]", Correction([RejectTokens()])),
    Candidate("sequence", "reject responses, 0.5 to 2", "reject_sequence: [0.5, 2]", Correction([RejectSequences()])),
    Candidate(
        "geometric",
        "reject responses, geometric, 0.999 to 1.001",
        "reject_geometric: [0.999, 1.001]",
        Correction([RejectGeometric()]),
    ),
    Candidate("k3", "reject responses, k3 up to 0.01", "reject_k3: 0.01", Correction([RejectK3()])),
    Candidate("veto", "veto, any ratio below 1e-4", "veto: 1e-4", Correction([Veto()])),
)


@dataclass(frozen=True)
class Kept:
    """What one correction leaves.

    Attributes:
        candidate: the correction.
        token_share: of the tokens that the engine sampled, those with a weight above 0.
        response_share: of the responses with a token, those of which one is left.
        weight_mean: mean weight of the tokens that are left; 1 without weights; NaN where none is left.
    """

    candidate: Candidate
    token_share: float
    response_share: float
    weight_mean: float


class KeptCounter:
    """Adds a dump up, a few responses at a time."""

    def __init__(self) -> None:
        """Nothing yet."""
        # by candidate: tokens left, responses left, sum of weights
        self._left = torch.zeros(len(CANDIDATES), 3, dtype=torch.float64)
        self._tokens = self._responses = 0

    def add(self, chunk: Responses) -> None:
        """Counts more responses."""
        for trainer_BT, rollout_BT, mask_BT in padded(chunk):
            self._tokens += int(mask_BT.sum())
            self._responses += int(mask_BT.any(dim=1).sum())
            for index, candidate in enumerate(CANDIDATES):
                weights_BT = candidate.correction(trainer_BT, rollout_BT, mask_BT).weights_BT
                left_BT = weights_BT > 0
                counts = (left_BT.sum(), left_BT.any(dim=1).sum(), weights_BT.double().sum())
                self._left[index] += torch.stack([count.double() for count in counts])

    def result(self) -> list[Kept]:
        """The shares, in the order of `CANDIDATES`; NaN where the dump has no token."""
        whole = torch.tensor([self._tokens, self._responses], dtype=torch.float64)
        tokens, responses = (self._left[:, :2] / whole).t().tolist()
        weights = (self._left[:, 2] / self._left[:, 0]).tolist()
        return [Kept(*row) for row in zip(CANDIDATES, tokens, responses, weights, strict=True)]


def padded(chunk: Responses) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Log-probs by trainer and engine, fp64, and the generated tokens, bool, all [B, T], padded on the right.

    Responses of like length are together, so that no more than half of a batch is padding: one long response among
    short ones would have them all padded to its length.
    """
    row_N, position_N = chunk.row_N, chunk.position_N
    # 1; 2; 3 and 4; 5 to 8; ...
    octave_B = chunk.lengths_B.clamp(min=1).double().log2().ceil()
    for octave in octave_B.unique():
        chosen_B = octave_B == octave
        chosen_N = chosen_B[row_N]
        places = (chosen_B.cumsum(dim=0) - 1)[row_N[chosen_N]], position_N[chosen_N]
        shape = (int(chosen_B.sum()), max(1, int(chunk.lengths_B[chosen_B].max())))
        trainer_BT, rollout_BT = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
        mask_BT = torch.zeros(shape, dtype=torch.bool)
        trainer_BT[places] = chunk.trainer_log_probs_N[chosen_N]
        rollout_BT[places] = chunk.rollout_log_probs_N[chosen_N]
        mask_BT[places] = chunk.generated_N[chosen_N]
        yield trainer_BT, rollout_BT, mask_BT
