"""Seeds and sweeps as runs."""

import pytest

from megarl.config.errors import UserError
from megarl.submit.tasks import tasks
from tests.runs import RECIPE

SHORT = ("output_dir=runs/${name}-${seed}-${rl.optimizer.lr}",)


def test_every_combination_is_a_run_seeds_changing_last() -> None:
    made = tasks(RECIPE, SHORT, "3,5-6", ["rl.optimizer.lr=[1e-4, 2e-4]"])
    assert [(task.recipe.rl.optimizer.lr, task.recipe.seed) for task in made] == [
        (lr, seed) for lr in (1e-4, 2e-4) for seed in (3, 5, 6)
    ]
    assert made[0].overrides == (*SHORT, "rl.optimizer.lr=0.0001", "seed=3")


def test_without_either_there_is_one() -> None:
    (only,) = tasks(RECIPE, (), None, ())
    assert only.overrides == () and only.recipe.seed == 0


def test_two_runs_in_one_folder_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"output_dir=runs/one is the folder of the runs with .*seed=0 and with .*seed=1"
    ):
        tasks(RECIPE, ("output_dir=runs/one",), "0-1", ())


@pytest.mark.parametrize("seeds", ["", "a", "1-", "3-1", "0-5000", "1;2", "-1", "9" * 30])
def test_what_are_no_seeds(seeds: str) -> None:
    with pytest.raises(UserError, match="--seeds"):
        tasks(RECIPE, (), seeds, ())


@pytest.mark.parametrize("sweep", ["seed=1", "seed=[]", "seed={a: 1}"])
def test_what_is_no_sweep(sweep: str) -> None:
    with pytest.raises(UserError, match="--sweep"):
        tasks(RECIPE, (), None, [sweep])
