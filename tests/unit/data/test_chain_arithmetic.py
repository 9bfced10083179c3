import math
import random
import re
import time
from typing import Any

import pytest

from megarl.config.data import DataConfig
from megarl.config.errors import RecipeError
from megarl.config.load import load_recipe
from megarl.data.chain_arithmetic import Chain, ChainArithmetic, ChainOptions, direct_answer, worked_solution

OPTIONS = ChainOptions()
LATE = 0.9
"""A progress after `clean_until`."""


def make(seed: int = 0, eval_prompts: int = 64, template: str = "{prompt}", **options: Any) -> ChainArithmetic:
    return ChainArithmetic(seed, DataConfig(eval_prompts=eval_prompts, prompt_template=template, options=options))


def evaluate_chain(prompt: str) -> int:
    return sum(int(term) for term in re.findall(r"[+-]?\d+", prompt))


def steps_of(solution: str) -> list[tuple[int, int, int]]:
    """(left, signed operand, result) of every step, with the box checked against the last one."""
    *steps, box = solution.split(";")
    parsed = []
    for step in steps:
        match = re.fullmatch(r"(\d+)([+-]\d+)=(\d+)", step)
        assert match is not None, solution
        parsed.append((int(match[1]), int(match[2]), int(match[3])))
    assert box == f"\\boxed{{{parsed[-1][2]}}}"
    return parsed


def tolerance(count: int, p: float) -> float:
    """Bernstein's bound: a mean of `count` draws of probability p is off by more with a chance below 1e-6.

    P(|K/n - p| >= sqrt(2 p (1 - p) L / n) + 2 L / (3 n)) <= 2 exp(-L), with L = ln(2e6).
    """
    level = math.log(2e6)
    return math.sqrt(2 * p * (1 - p) * level / count) + 2 * level / (3 * count)


def test_prompt_and_solution_read_as_documented() -> None:
    chain = Chain(17, (5, -8, 6))
    assert chain.prompt == "17+5-8+6="
    assert chain.totals == [17, 22, 14, 20]
    solution = worked_solution(chain, 0.0, random.Random(0), (10, 29))
    assert solution == "17+5=22;22-8=14;14+6=20;\\boxed{20}"


def test_pure_functions_of_seed_and_index() -> None:
    one, two, other = make(seed=3), make(seed=3), make(seed=4)
    forwards = [one.training(index) for index in range(200)]
    assert [two.training(index) for index in reversed(range(200))] == forwards[::-1]
    assert [one.demonstration(index, LATE) for index in range(200)] == [
        two.demonstration(index, LATE) for index in range(200)
    ]
    assert [other.training(index).prompt for index in range(200)] != [problem.prompt for problem in forwards]
    assert [one.demonstration(index, 0)[0].prompt for index in range(200)] != [problem.prompt for problem in forwards]


def test_stream_is_the_same_on_every_machine() -> None:
    source = make(seed=0)
    assert [source.training(index).prompt for index in range(3)] == ["15+9-8+4=", "14+9-8+3=", "15+8-3-1="]
    assert [problem.prompt for problem in source.evaluation()[:3]] == ["13+4+4+8=", "27-7+7-7=", "10+3-3+6="]


def test_evaluation_is_distinct_and_the_same_for_every_seed() -> None:
    evaluation = make(seed=0).evaluation()
    assert len({problem.prompt for problem in evaluation}) == len({problem.id for problem in evaluation}) == 64
    assert make(seed=9).evaluation() == evaluation
    assert make(eval_prompts=10).evaluation() == evaluation[:10]


def test_training_and_demonstrations_keep_out_evaluation() -> None:
    # 2,000 problems of 53,580 are kept out; some 900 of 20,000 blind draws would meet one
    source = make(eval_prompts=2000)
    kept_out = {problem.prompt for problem in source.evaluation()}
    assert not any(source.training(index).prompt in kept_out for index in range(20_000))
    assert not any(source.demonstration(index, 0.0)[0].prompt in kept_out for index in range(20_000))


def test_answers_are_right_and_totals_stay_in_range() -> None:
    source = make()
    for index in range(5000):
        problem = source.training(index)
        assert int(problem.answer) == evaluate_chain(problem.prompt)
        numbers = [int(term) for term in re.findall(r"[+-]?\d+", problem.prompt)]
        assert len(numbers) == 4
        assert 10 <= numbers[0] <= 29
        assert all(1 <= abs(number) <= 9 for number in numbers[1:])
        assert all(10 <= sum(numbers[:count]) <= 29 for count in range(1, 5))


def test_clean_demonstrations_are_right() -> None:
    source = make(slip=1.0)
    for index in range(5000):
        problem, response = source.demonstration(index, 0.77)
        steps = steps_of(response)
        assert all(left + operand == result for left, operand, result in steps)
        assert "".join([str(steps[0][0]), *(f"{operand:+d}" for _, operand, _ in steps), "="]) == problem.prompt
        assert [left for left, _, _ in steps[1:]] == [result for _, _, result in steps[:-1]]
        assert str(steps[-1][2]) == problem.answer


def test_mixture_has_its_shares() -> None:
    source, count = make(), 20_000
    demonstrations = [source.demonstration(index, LATE) for index in range(count)]
    worked = [(problem, response) for problem, response in demonstrations if "=" in response]
    direct = [(problem, response) for problem, response in demonstrations if "=" not in response]
    assert abs(len(worked) / count - 0.3) < tolerance(count, 0.3)
    right = sum(response == f"\\boxed{{{problem.answer}}}" for problem, response in direct)
    assert abs(right / len(direct) - 0.1) < tolerance(len(direct), 0.1)
    steps = [step for _, response in worked for step in steps_of(response)]
    wrong = sum(left + operand != result for left, operand, result in steps)
    assert abs(wrong / len(steps) - 0.03) < tolerance(len(steps), 0.03)


def test_slips_stay_in_range_and_are_carried_on() -> None:
    rng, source, slipped = random.Random(0), make(), 0
    for index in range(3000):
        prompt = source.training(index).prompt
        first, *operands = (int(term) for term in re.findall(r"[+-]?\d+", prompt))
        steps = steps_of(worked_solution(Chain(first, tuple(operands)), 0.5, rng, (10, 29)))
        assert [operand for _, operand, _ in steps] == operands
        assert [left for left, _, _ in steps] == [first, *(result for _, _, result in steps[:-1])]
        assert all(10 <= result <= 29 for _, _, result in steps)
        errors = {result - left - operand for left, operand, result in steps}
        assert errors <= {0, 1, -1, 2, -2, 10, -10}
        slipped += errors != {0}
    # 1 - .5 ** 3 of the solutions have a slip
    assert abs(slipped / 3000 - 0.875) < tolerance(3000, 0.875)


def test_direct_guesses_stay_in_range() -> None:
    rng, chain = random.Random(0), Chain(25, (4, -1, 1))
    never = {direct_answer(chain, 0.0, rng, (10, 29)) for _ in range(3000)}
    assert never == {f"\\boxed{{{number}}}" for number in range(10, 29)}
    assert {direct_answer(chain, 1.0, rng, (10, 29)) for _ in range(20)} == {"\\boxed{29}"}


def test_template_is_applied_to_the_prompt_only() -> None:
    source = make(template="Put it in \\boxed{}: {prompt}")
    problem = source.training(5)
    assert problem.prompt == f"Put it in \\boxed{{}}: {make().training(5).prompt}"
    assert source.evaluation()[0].prompt.startswith("Put it in \\boxed{}: ")


def test_a_draw_costs_little() -> None:
    source = make()
    start = time.perf_counter()
    for index in range(2000):
        source.training(index)
    # some 20 us each where this was written; the bound leaves room for a loaded machine
    assert (time.perf_counter() - start) / 2000 < 500e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"term": 4}, ["data.options.term=4", "did you mean terms?"]),
        ({"zzz": 4}, ["data.options.zzz=4", "clean_until"]),
        ({"terms": 1}, ["data.options.terms=1", "below 2"]),
        ({"terms": 4.0}, ["data.options.terms=4.0", "whole number"]),
        ({"terms": True}, ["data.options.terms=true", "whole number"]),
        ({"careful": "much"}, ["data.options.careful=much", "not a number"]),
        ({"careful": 1.2}, ["data.options.careful=1.2", "above 1"]),
        ({"slip": float("nan")}, ["data.options.slip=NaN", "below 0"]),
        ({"careful": 10**400}, ["data.options.careful=1000", "above 1"]),
        ({"terms": 1_000_000}, ["data.options.terms=1000000", "at most 64"]),
        ({"operand": [1, 10**12]}, ["data.options.operand=[1, 1000000000000]", "at most 1000000000"]),
        ({"zzz": 4}, ["data.options=null"]),
        ({"first": 10}, ["data.options.first=10", "not a range"]),
        ({"first": [29, 10]}, ["data.options.first=[29, 10]", "not a range"]),
        ({"first": [10, 12, 29]}, ["data.options.first=[10, 12, 29]", "not a range"]),
        ({"operand": [0, 9]}, ["data.options.operand=[0, 9]", "below 1"]),
        ({"first": [5, 29]}, ["data.options.first=[5, 29]", "data.options.total=[10, 29]"]),
        ({"operand": [1, 11]}, ["data.options.total=[10, 29]", "at least 21"]),
        ({"terms": 2, "first": [15, 16], "operand": [1, 1]}, ["data.eval_prompts=64", "about 4 problems", "at most 2"]),
    ],
)
def test_refused_options(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        make(**options)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_more_evaluation_problems_than_there_are_is_refused_at_once() -> None:
    start = time.perf_counter()
    with pytest.raises(RecipeError, match="about 4 problems"):
        make(eval_prompts=10**8, terms=2, first=[15, 16], operand=[1, 1])
    assert time.perf_counter() - start < 5
    with pytest.raises(RecipeError, match=r"data\.eval_prompts=100000000 .*is above 100000"):
        load_recipe("recipes/demo/grpo_arithmetic.yaml", ["data.eval_prompts=100000000"])


def test_whole_numbers_do_for_shares_and_small_spaces_for_few_prompts() -> None:
    source = make(eval_prompts=2, terms=2, first=[15, 16], operand=[1, 1], careful=1, slip=0, clean_until=0)
    kept_out = {problem.prompt for problem in source.evaluation()}
    trained_on = {source.training(index).prompt for index in range(100)}
    assert kept_out | trained_on == {"15+1=", "15-1=", "16+1=", "16-1="}
    assert not kept_out & trained_on
    assert ";" in source.demonstration(0, 0.5)[1]
