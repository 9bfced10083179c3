"""Who wrote a token, laid out on a step's batch."""

import torch

from megarl.loop.drift import laid_out
from megarl.rollout import Completion, Request, VersionSpan


def test_spans_lie_on_the_tokens_that_they_wrote() -> None:
    spans = [
        (VersionSpan(7, 0, 2, replica=1), VersionSpan(8, 2, 3, replica=0)),
        (),
        (VersionSpan(6, 0, 1),),
    ]
    lengths = [each[-1].end if each else 0 for each in spans]
    completions = [
        Completion(Request("p", row, (1,), "rl/0"), (2,) * length, (-1.0,) * length, "stop", each)
        for row, (each, length) in enumerate(zip(spans, lengths, strict=True))
    ]
    mask = torch.tensor([[False, True, True, True], [False] * 4, [True, False, False, False]])
    ages = laid_out(mask, completions, lambda span: 8 - span.version)
    assert ages.tolist() == [[-1, 1, 1, 0], [-1] * 4, [2, -1, -1, -1]]
    replicas = laid_out(mask, completions, lambda span: -1 if span.replica is None else span.replica)
    assert replicas.tolist() == [[-1, 1, 1, 0], [-1] * 4, [-1, -1, -1, -1]]
    assert laid_out(mask[1:2], completions[1:2], lambda span: 5).tolist() == [[-1] * 4]
