"""Log-probs of a vocabulary that is split over two processes are those of the whole one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from megarl.megatron.distribution import Distribution, Sampling, VocabularyShard
from megarl.megatron.token_log_probs import token_log_probs
from tests.parallel.world import run_world
from tests.triton_here import interprets_kernels

pytestmark = pytest.mark.parallel

VOCAB, RANKS = 11, 2
KINDS = ("log_probs", "entropy", "gradient")
# columns a rank: an even split with one column of padding, and one in which the second rank holds padding alone
SPLITS = {"padded": 6, "second rank is empty": 12}


def make_case(
    tokens: int, temperature: float, columns: int, chunk: int, top_p: float = 1.0, top_k: int = 0
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens)
    targets = torch.randint(0, VOCAB, (tokens,), generator=generator)
    # both ends of both shards
    ends = torch.tensor([0, 5, 6, VOCAB - 1])[:tokens]
    targets[: len(ends)] = ends
    return {
        "logits": 3 * torch.randn(tokens, VOCAB, generator=generator) + lean(tokens),
        # what a padded row of the output layer would give: large, so that reading it shows
        "padding": torch.full((tokens, RANKS * columns), 50.0),
        "targets": targets,
        "weights": torch.randn(2, tokens, generator=generator),
        "sampling": (temperature, top_p, top_k),
        # so few that a shard's likeliest one does not settle what the other shard leaves
        "candidates": 1,
        "columns": columns,
        "chunk": chunk,
    }


def lean(tokens: int) -> Tensor:
    """Rows lean to the first rank's tokens, to the second one's, or to neither."""
    columns = torch.where(torch.arange(VOCAB) < SPLITS["padded"], 1.0, -1.0)
    return 4 * columns * (torch.arange(tokens) % 3 - 1)[:, None]


CASES = {
    f"{name}, {tokens} tokens, temperature {temperature}, chunks of {chunk}": make_case(
        tokens, temperature, columns, chunk
    )
    for name, columns in SPLITS.items()
    for tokens, temperature, chunk in ((9, 0.6, 4096), (9, 1.3, 3), (9, 1.0, 4), (0, 1.0, 4096))
} | {
    f"{name}, top-p {top_p}, top-k {top_k}, {tokens} tokens": make_case(tokens, 0.7, columns, 20, top_p, top_k)
    for name, columns in SPLITS.items()
    for tokens, top_p, top_k in (
        (900, 0.6, 0),
        (900, 0.9, 0),
        (60, 1.0, 4),
        (60, 0.8, 7),
        (60, 1e-6, 0),
        (60, 1.0, 1),
        (0, 0.9, 4),
    )
}


@pytest.fixture(scope="module", params=["torch", pytest.param("kernels", marks=interprets_kernels)])
def results(request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    """Case to what each rank got, by torch's operations or Triton's kernels."""
    args = {"cases": list(CASES.values()), "kernels": request.param == "kernels"}
    by_rank = run_world("tests.parallel.log_probs_worker:score", RANKS, args, timeout_s=240)
    return {name: [rank[place] for rank in by_rank] for place, name in enumerate(CASES)}


def whole(case: dict[str, Any]) -> dict[str, Any]:
    """The same by one process."""
    logits = case["logits"].clone().requires_grad_()
    shard = VocabularyShard(None, 0, VOCAB)
    log_probs, entropy, outside = token_log_probs(
        logits, case["targets"], Distribution(shard, Sampling(*case["sampling"]))
    )
    total = (case["weights"][0] * log_probs).sum() + (case["weights"][1] * entropy).sum()
    gradient = torch.autograd.grad(total, logits)[0]
    return {"log_probs": log_probs, "entropy": entropy, "gradient": gradient, "outside": outside}


@pytest.mark.parametrize("name", CASES)
def test_split_vocabulary_is_the_whole_one(name: str, results: dict[str, list[dict[str, Any]]]) -> None:
    case, wanted = CASES[name], whole(CASES[name])
    ranks = results[name]
    # two units in the last place of the largest scaled logit, and of that times the largest weight of the loss
    rounding = 2**-22 * max([1.0, *(case["logits"].abs().flatten() / case["sampling"][0]).tolist()])
    slope = max([1.0, *case["weights"].abs().flatten().tolist()])
    for kind in ("log_probs", "entropy"):
        assert torch.equal(ranks[0][kind], ranks[1][kind])
        torch.testing.assert_close(ranks[0][kind], wanted[kind].detach(), rtol=1e-6, atol=rounding)
    gradient = torch.cat([rank["gradient"] for rank in ranks], dim=1)
    torch.testing.assert_close(gradient[:, :VOCAB], wanted["gradient"], rtol=1e-6, atol=slope * rounding)
    assert (gradient[:, VOCAB:] == 0).all()
    # the same tokens are left out, to the last one
    assert torch.equal(gradient[:, :VOCAB] == 0, wanted["gradient"] == 0)
    for rank in ranks:
        assert (rank["outside"] is None) == (wanted["outside"] is None)
        assert wanted["outside"] is None or torch.equal(rank["outside"], wanted["outside"])
    if case["columns"] == SPLITS["padded"] and len(case["targets"]) and wanted["outside"] is None:
        # target 0 is the first rank's: the second one's gradient is that of the other tokens' probability
        assert (ranks[1]["gradient"][0] != 0).any()
