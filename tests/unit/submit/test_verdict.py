"""What becomes of a job that ended."""

from dataclasses import replace

import pytest

from megarl.submit.verdict import Attempt, Limits, verdict

LIMITS = Limits(requeue=True, same_step=3, failures=5, excluded=2)
FAILED = Attempt("1-0", code=1, stopped="", bad=(), reached="rl 4", saved="1-rl-00000004", done=False)


def stopped(saved: str, by: str = "USR1") -> Attempt:
    """One that a signal ended."""
    return replace(FAILED, code=138, stopped=by, saved=saved)


def of(*attempts: Attempt, limits: Limits = LIMITS) -> str:
    """The verdict over the last of these."""
    return verdict(attempts[:-1], attempts[-1], limits)[0]


def test_a_run_that_is_over_is_done() -> None:
    assert of(replace(FAILED, code=0)) == "done"
    # a signal that came with the last step
    assert of(replace(stopped("2-done-00000000"), done=True)) == "done"


def test_a_stop_that_saved_comes_back_without_end() -> None:
    attempts = [stopped(f"1-rl-{step:08d}") for step in range(1, 30)]
    assert of(*attempts) == "again"


def test_a_stop_that_saved_nothing_new_is_a_failure() -> None:
    same = stopped("1-rl-00000004")
    assert of(same, same) == "again"
    assert of(same, same, same) == "again"
    assert of(same, same, same, same) == "stop"


def test_failures_in_a_row_at_one_step_end_it() -> None:
    assert of(FAILED, FAILED) == "again"
    decided, reason = verdict([FAILED, FAILED], FAILED, LIMITS)
    assert decided == "stop"
    assert reason == "3 failures in a row at rl 4, the last with exit code 1; the job's output says why"


def test_progress_between_failures_counts_anew() -> None:
    later = replace(FAILED, reached="rl 9")
    assert of(FAILED, FAILED, later, FAILED) == "again"
    assert of(FAILED, FAILED, stopped("1-rl-00000006"), FAILED) == "again"


def test_failures_in_all_are_bounded() -> None:
    attempts = [replace(FAILED, reached=f"rl {step}") for step in range(5)]
    assert of(*attempts[:4]) == "again"
    assert of(*attempts) == "stop"


def test_a_mistake_of_the_users_is_not_tried_again() -> None:
    refused = replace(FAILED, code=2, reached="", saved="")
    assert of(refused) == "stop"
    # a bad node says nothing of the recipe, which is first looked at on the next
    assert of(replace(refused, code=1, bad=("n1",)), refused) == "stop"
    # later it is the folder that a process of a lost node still holds
    assert of(FAILED, refused) == "again"


@pytest.mark.parametrize("by", ["USR2"])
def test_cancelled_is_cancelled(by: str) -> None:
    assert of(stopped("1-rl-00000009", by)) == "stop"


def test_without_requeue_the_next_job_goes_on() -> None:
    never = replace(LIMITS, requeue=False)
    assert of(stopped("1-rl-00000009"), limits=never) == "left"
    assert of(FAILED, limits=never) == "left"
    assert of(replace(FAILED, bad=("n1",)), limits=never) == "left"
    assert of(FAILED, FAILED, FAILED, limits=never) == "stop"


def test_bad_nodes_are_left_out_up_to_a_number_of_them() -> None:
    first, second, third = (replace(FAILED, reached="", bad=(name,)) for name in ("n1", "n2", "n3"))
    assert of(first, second) == "again"
    assert verdict([first], second, LIMITS)[1] == "without n2"
    assert of(first, second, third) == "stop"
    # one that was excluded says nothing about the run
    assert of(FAILED, first, FAILED) == "again"
    assert of(FAILED, first, FAILED, FAILED) == "stop"
