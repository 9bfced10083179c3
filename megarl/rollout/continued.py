"""A response that is generated in parts: what was cut short goes on where it stopped."""

from dataclasses import replace

from megarl.rollout.types import Completion, Request, SamplingParams


def rest_of(request: Request, sampling: SamplingParams, begun: Completion | None) -> tuple[Request, SamplingParams]:
    """What to ask an engine for, so that a response which has begun is finished.

    The rest has a stream of its own: under the first part's it would be drawn with the same random numbers again.

    Args:
        request: the whole response's.
        sampling: the whole response's.
        begun: what there is of it.
    """
    if begun is None or not begun.token_ids:
        return request, sampling
    length = len(begun.token_ids)
    rest = replace(request, prompt_ids=request.prompt_ids + begun.token_ids, stream=f"{request.stream}/from {length}")
    return rest, replace(sampling, max_new_tokens=sampling.max_new_tokens - length)


def joined(request: Request, begun: Completion | None, rest: Completion) -> Completion:
    """The response as far as it is there now: its tokens, log-probs and version spans end to end."""
    if begun is None or not begun.token_ids:
        return replace(rest, request=request)
    length = len(begun.token_ids)
    spans = list(begun.versions)
    for span in rest.versions:
        shifted = replace(span, start=span.start + length, end=span.end + length)
        if spans and (spans[-1].version, spans[-1].replica) == (shifted.version, shifted.replica):
            shifted = replace(shifted, start=spans.pop().start)
        spans.append(shifted)
    return Completion(
        request=request,
        token_ids=begun.token_ids + rest.token_ids,
        log_probs=begun.log_probs + rest.log_probs,
        finish_reason=rest.finish_reason,
        versions=tuple(spans),
    )
