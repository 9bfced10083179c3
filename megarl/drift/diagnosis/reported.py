"""What a dump alone tells: tokens and both sides' log-probs, without a model."""

from dataclasses import dataclass

from torch import Tensor

from megarl.drift.diagnosis.rollouts import Sampling


@dataclass(frozen=True)
class Reported:
    """N tokens of responses, one response after the other.

    Attributes:
        rows_N: int64, the response of each token.
        targets_N: int64, the token.
        engine_N: fp64, its log-prob as the engine reported it, in nats; NaN where it gave none.
        trainer_N: likewise by the trainer.
        contexts_N: int64, equal where tokens were drawn behind the same tokens by the same weights; -1 where no other
            token was. See `shared_contexts`.
        sampling: what the engine was asked for; None where that is not known.
        stop_token_id: what ends a response; None where it is not known.
    """

    rows_N: Tensor
    targets_N: Tensor
    engine_N: Tensor
    trainer_N: Tensor
    contexts_N: Tensor
    sampling: Sampling | None = None
    stop_token_id: int | None = None
