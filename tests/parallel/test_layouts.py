"""Loss, log-probs and gradients under every layout of docs/layouts.md are those of world size 1."""

import pytest
from torch import Tensor

from tests.parallel.layouts import CASES, PAGE, Case, page
from tests.parallel.world import run_world

pytestmark = pytest.mark.parallel

# the bound of the page; fp32 sums in another order differ by about 1e-6
RELATIVE = 1e-4
Results = dict[str, dict[str, Tensor]]


@pytest.fixture(scope="module")
def results() -> Results:
    """Case to what it gave, and each model at world size 1."""
    found: Results = {}
    for ranks in (1, 2, 4):
        by_rank = run_world("tests.parallel.layouts_worker:run", ranks, {}, timeout_s=60 + 90 * ranks)
        found |= by_rank[0]
    return found


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_layout(case: Case, results: Results) -> None:
    """Each tensor relative to its own largest entry: single entries of a sum may cancel to nothing."""
    got, wanted = results[case.name], results[case.model]
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert tensor.abs().max() > 0, name
        assert (got[name] - tensor).abs().max() <= RELATIVE * tensor.abs().max(), name


def test_the_page_lists_what_is_tested() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.parallel.layouts"
