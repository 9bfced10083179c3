import os
import subprocess
import sys
from typing import Any

import pytest

from megarl.config.data import DataConfig
from megarl.config.errors import RecipeError, UserError
from megarl.data.reasoning_gym_source import _CHUNK, _HASH_ORDERED, ReasoningGymSource, make_dataset


def make(seed: int = 0, eval_prompts: int = 16, template: str = "{prompt}", **options: Any) -> ReasoningGymSource:
    pytest.importorskip("reasoning_gym")
    return ReasoningGymSource(seed, DataConfig(eval_prompts=eval_prompts, prompt_template=template, options=options))


SMALL: dict[str, Any] = {"task": "chain_sum", "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
"""Some 200 problems, so that evaluation problems come up in training unless they are kept out."""


def test_pure_functions_of_seed_and_index() -> None:
    one, two, other = make(3, **SMALL), make(3, **SMALL), make(4, **SMALL)
    indexes = [0, 1, _CHUNK - 1, _CHUNK, 40 * _CHUNK + 7, 10**12]
    forwards = [one.training(index) for index in indexes]
    assert [two.training(index) for index in reversed(indexes)] == forwards[::-1]
    assert [one.training(index).prompt for index in range(20)] != [other.training(index).prompt for index in range(20)]
    assert one.evaluation() == other.evaluation()
    assert one.demonstration(5, 0.1) == two.demonstration(5, 0.9)


def test_training_and_demonstrations_keep_out_evaluation() -> None:
    source = make(eval_prompts=64, **SMALL)
    kept_out = {problem.prompt for problem in source.evaluation()}
    assert len(kept_out) == 64
    assert not any(source.training(index).prompt in kept_out for index in range(20_000))
    assert not any(source.demonstration(index, 0.0)[0].prompt in kept_out for index in range(2000))


def test_problems_carry_the_scorers_entry() -> None:
    source = make(template="Q: {prompt} A:", **SMALL)
    problem, response = source.demonstration(0, 0.0)
    entry = problem.metadata["entry"]
    assert problem.prompt == f"Q: {entry['question']} A:"
    assert problem.answer == entry["answer"]
    assert response == f"\\boxed{{{entry['answer']}}}"
    assert make_dataset(SMALL, 0, 1).score_answer(problem.answer, entry) == 1.0


def test_neighbouring_chunks_do_not_overlap() -> None:
    source = make(task="chain_sum", min_digits=4, min_terms=6)
    prompts = {source.training(index).prompt for index in range(3 * _CHUNK)}
    assert len(prompts) == 3 * _CHUNK


def test_items_without_an_answer_are_skipped() -> None:
    options: dict[str, Any] = {"task": "propositional_logic"}
    with pytest.raises(RecipeError, match="propositional_logic, which gives about 0 problems with a reference answer"):
        make(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["data.options.task=null", "chain_sum"]),
        ({"task": "chain_sums"}, ["data.options.task=chain_sums", "did you mean chain_sum?"]),
        ({"task": "chain_sum", "max_term": 3}, ["data.options.max_term=3", "did you mean max_terms?"]),
        ({"task": "chain_sum", "seed": 3}, ["data.options.seed=3", "no option"]),
        ({"task": "chain_sum", "size": 3}, ["data.options.size=3", "no option"]),
        ({"task": "chain_sum", "min_terms": 9, "max_terms": 3}, ["max_terms must be >= min_terms"]),
        ({"task": "chain_sum", "min_terms": "many"}, ["data.options=", "chain_sum"]),
        ({"task": "chain_sum", "max_terms": 1, "min_terms": 1, "max_digits": 1}, ["data.eval_prompts=16", "about 10"]),
    ],
)
def test_refused_options(options: dict[str, Any], words: list[str]) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(RecipeError) as caught:
        ReasoningGymSource(0, DataConfig(eval_prompts=16, options=options))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.delitem(sys.modules, "reasoning_gym.factory", raising=False)
    with pytest.raises(UserError, match=r"pip install -c constraints.txt -e '\.\[reasoning-gym\]'"):
        ReasoningGymSource(0, DataConfig(options=SMALL))


def test_tasks_that_follow_the_hash_seed_need_a_fixed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(RecipeError, match="PYTHONHASHSEED=0"):
        make(task="word_ladder")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert make(task="ransom_note").training(0).answer in ("True", "False")


def test_other_tasks_do_not_follow_the_hash_seed() -> None:
    pytest.importorskip("reasoning_gym")
    assert "spell_backward" not in _HASH_ORDERED
    program = (
        "from megarl.config.data import DataConfig\n"
        "from megarl.data.reasoning_gym_source import ReasoningGymSource\n"
        "for task in ('chain_sum', 'spell_backward', 'gcd'):\n"
        "    source = ReasoningGymSource(5, DataConfig(eval_prompts=8, options={'task': task}))\n"
        "    print([source.training(index) for index in range(20)])\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert len(runs[0]) > 1000
    assert runs[0] == runs[1]
