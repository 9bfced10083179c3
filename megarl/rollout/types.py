"""What goes into an engine and what comes out: token ids both ways, never text."""

from dataclasses import dataclass, field
from typing import Literal

from megarl.rollout.routing import RoutedExperts

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SamplingParams:
    """How an engine samples; owned by the recipe.

    Attributes:
        temperature: divides the logits; log-probs are those of the resulting distribution.
        max_new_tokens: longest response, end token included.
        stop_token_id: the token that ends a response and is part of it.
        greedy: take the likeliest token instead of sampling.
        with_routing: whether completions carry the experts that their tokens went to.
        top_p: of what top_k leaves, the fewest likeliest tokens whose probability reaches it are sampled; 1 for all.
        top_k: after the temperature, the likeliest tokens, so many, are sampled; 0 for all.
    """

    temperature: float
    max_new_tokens: int
    stop_token_id: int
    greedy: bool = False
    with_routing: bool = False
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Request:
    """One response to generate.

    Attributes:
        problem_id: identity of the prompt; the responses of one prompt are a group.
        sample: number of the response within its group.
        prompt_ids: the prompt's tokens.
        stream: names the occasion, such as 'rl/12'; with the problem, the sample and the recipe's seed it keys the
            sampling randomness, so a response does not depend on what else is in the batch.
    """

    problem_id: str
    sample: int
    prompt_ids: tuple[int, ...]
    stream: str


@dataclass(frozen=True)
class VersionSpan:
    """Tokens [start, end) of a response were sampled with these weights.

    Attributes:
        version: of the weights.
        start: first token.
        end: the one behind the last.
        replica: number of the server that sampled them, of those that a run has; None where it is not known. It counts
            in no comparison.
    """

    version: int
    start: int
    end: int
    replica: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Completion:
    """One generated response.

    Attributes:
        request: what was asked for.
        token_ids: the response's tokens, which may be none; the last one is the stop token where finish_reason is
            'stop'.
        log_probs: log-prob of each token, in nats, under the distribution that it was sampled from; None, NaN or an
            infinity where the engine has none.
        finish_reason: 'stop', or 'length' where max_new_tokens or the context ended it. 'abort' where an update or a
            checkpoint did: such a part of a response is continued or begun anew, and never trained on.
        versions: weight version of each token, as spans that cover the response.
        routing: the experts of the tokens that were read, of prompt and response; None where not asked for. It counts
            in no comparison.
    """

    request: Request
    token_ids: tuple[int, ...]
    log_probs: tuple[float | None, ...]
    finish_reason: FinishReason
    versions: tuple[VersionSpan, ...]
    routing: RoutedExperts | None = field(default=None, compare=False)
