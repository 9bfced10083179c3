"""What an engine says of another's tokens, as far as it draws the same ones."""

from collections.abc import Iterator

from megarl.rollout.types import Completion


def log_probs_of_same_tokens(before: Completion, again: Completion) -> Iterator[float]:
    """A log-prob in nats for each token of `before`, from an answer to the same request.

    An engine scores what it samples, not given tokens. Requests are keyed, so that it draws the same tokens until a
    log-prob moves a draw; up to there the log-probs are of the same token behind the same prefix, and NaN after.
    """
    same = True
    for place, token in enumerate(before.token_ids):
        same = same and place < len(again.token_ids) and again.token_ids[place] == token
        given = again.log_probs[place] if same else None
        yield float("nan") if given is None else given
