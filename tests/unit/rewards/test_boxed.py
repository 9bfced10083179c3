import os
import time
from fractions import Fraction
from pathlib import Path

import pytest

from megarl.data.problem import Problem
from megarl.rewards.boxed import boxed_answer, last_boxed, parse_number


def reward(response: str, answer: str) -> float:
    return boxed_answer(response, Problem("p", "?", answer))


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("42", r"So the answer is \boxed{42}."),
        ("20", r"17+5=22;22-8=14;14+6=20;\boxed{20}"),
        ("5", r"\boxed{ 5 }"),
        ("5 ", r"\boxed{5}"),
        ("5", r"\boxed{$5$}"),
        ("5", r"First \boxed{3}, so finally \boxed{5}."),
        ("5", r"\boxed{1}\boxed{2}\boxed{3}\boxed{4}\boxed{5}"),
        ("5", r"\boxed{\boxed{5}}"),
        ("5", r"\boxed{5} I checked it 3 times, 100% sure."),
        ("5", "We have 2+3=5. " * 3000 + r"\boxed{5}"),
        ("10000", r"\boxed{10,000}"),
        ("10000", r"\boxed{10{,}000}"),
        ("10000", r"\boxed{10\,000}"),
        ("10000", r"\boxed{10,\!000}"),
        ("1,234,567", r"\boxed{1234567}"),
        ("18", r"\boxed{\$18}"),
        ("18", r"\boxed{\$18.00}"),
        ("7", r"\boxed{7.}"),
        ("7", r"\boxed{+7}"),
        ("7", r"\boxed{007}"),
        ("0", r"\boxed{-0}"),
        ("2.5", r"\boxed{2.500}"),
        ("0.5", r"\boxed{.5}"),
        ("-0.5", r"\boxed{-.5}"),
        ("-3", "\\boxed{\u22123}"),
        (r"\frac{1}{2}", r"\boxed{0.5}"),
        ("0.25", r"\boxed{\frac{1}{4}}"),
        (r"\frac{3}{4}", r"\boxed{\dfrac{3}{4}}"),
        (r"\frac{3}{4}", r"\boxed{\tfrac{3}{4}}"),
        (r"\frac{3}{4}", r"\boxed{\frac34}"),
        (r"\frac{3}{4}", r"\boxed{3/4}"),
        ("3/4", r"\boxed{6 / 8}"),
        (r"\frac{1}{2}", r"\boxed{\frac{2}{4}}"),
        (r"-\frac{1}{2}", r"\boxed{\frac{-1}{2}}"),
        (r"\frac{1}{\sqrt{2}+\frac{1}{3}}", r"\boxed{\frac{1}{\sqrt{2}+\frac{1}{3}}}"),
        (r"\{1,2,3\}", r"\boxed{\{1,2,3\}}"),
        (r"\left\{ x \right.", r"\boxed{\left\{ x \right.}"),
        (r"(-\infty,3]", r"\boxed{(-\infty,3]}"),
        (r"\text{even}", r"\boxed{\text{even}}"),
        ("3:30", r"\boxed{3:30}"),
        ("x=5", r"\boxed{x=5}"),
    ],
)
def test_right(answer: str, response: str) -> None:
    assert reward(response, answer) == 1.0


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("42", r"\boxed{43}"),
        ("5", r"First \boxed{5}, so finally \boxed{3}."),
        ("3.5", r"\boxed{2 3 1/2}"),
        ("2", r"\boxed{3 1/2}"),
        ("15.5", r"\boxed{31/2 }\boxed{3 1/2}"),
        ("0", r"\boxed{10\,000}"),
        ("5", r"\boxed{5\%}"),
        ("0.05", r"\boxed{5\%}"),
        ("2516_8", r"\boxed{2516}"),
        ("1/3", r"\boxed{.333333333}"),
        ("0.1", r"\boxed{0.10000000001}"),
        ("8/3", r"\boxed{2.67}"),
        ("1/10", r"\boxed{3:30}"),
        ("(1,234)", r"\boxed{1234}"),
        ("1,2,3", r"\boxed{123}"),
        ("1234", r"\boxed{12,34}"),
        ("1,2", r"\boxed{2,1}"),
        ("[0,1]", r"\boxed{(0,1)}"),
        ("5", r"\boxed{1,2,3,4,5}"),
        ("5", r"\boxed{5 \text{ or } 6}"),
        (r"\text{even}", r"\boxed{\text{odd}}"),
        ("-3", r"\boxed{3}"),
        ("-3", r"\boxed{--3}"),
        ("1/2", r"\boxed{--1/2}"),
        ("1234", r"So the answer is \boxed{1234"),
        ("1234", r"So the answer is \boxed{12"),
        ("5", r"\boxed{5} and then \boxed{5"),
        ("5", r"\boxed{5\}"),
        (r"\frac{1}{2}", r"so \boxed{\frac{1}{2"),
        ("5", r"\boxed{}"),
        ("5", r"\boxed{.}"),
        ("5", r"\boxed{-}"),
        ("5", ""),
        ("5", "The answer is 5."),
        ("5", r"\fbox{5}"),
        ("18", "#### 18"),
        ("1", r"\boxed{1/0}"),
        ("5", r"\boxed{\frac{0}{0}}"),
        ("5", r"\boxed{\frac{1}{}\sqrt}{"),
        ("5", r"\boxed{@@#!$%^&*}"),
        ("5", r"\boxed{x}"),
        ("300000000", r"\boxed{3e8}"),
        ("42", "\\boxed{\uff14\uff12}"),
    ],
)
def test_wrong(answer: str, response: str) -> None:
    assert reward(response, answer) == 0.0


@pytest.mark.parametrize(
    "body",
    [
        "9" * 6000,
        "{" * 100_000 + "5" + "}" * 100_000,
        "\\boxed{" * 50_000,
        "1e999999999",
        "9^{9^{9^9}}",
        "99999999!",
        ",000" * 50_000,
        "1" + ",000" * 70 + "x",
        "1/" + "9" * 290,
        "\\" * 100_001,
        "\\frac{1}{1+" * 60 + "1" + "}" * 60,
        "-" * 299,
        "$" * 299,
    ],
)
def test_malicious_boxes_are_worth_nothing_and_cost_nothing(body: str) -> None:
    start = time.perf_counter()
    assert reward(f"\\boxed{{{body}}}", "5") == 0.0
    # microseconds where this was written; the bound leaves room for a loaded machine
    assert time.perf_counter() - start < 0.1


@pytest.mark.parametrize(
    "body",
    [
        "__import__('os').system('touch PWNED')",
        "exec(\"open('PWNED','w')\")",
        "(lambda: open('PWNED','w'))()",
        "().__class__.__bases__[0].__subclasses__()",
    ],
)
def test_nothing_is_evaluated(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert reward(f"\\boxed{{{body}}}", "5") == 0.0
    assert os.listdir(tmp_path) == []


def test_box_is_taken_up_to_its_cap() -> None:
    assert last_boxed("\\boxed{" + "9" * 300 + "}") == "9" * 300
    assert last_boxed("\\boxed{" + "9" * 301 + "}") is None
    assert last_boxed(r"\boxed{a\}b{c}\{}") == r"a\}b{c}\{"
    assert last_boxed("no box") is None


def test_numbers_are_exact() -> None:
    assert parse_number("-1,234.50") == Fraction(-2469, 2)
    assert parse_number("0." + "0" * 290 + "1") == Fraction(1, 10**291)
    assert parse_number("9" * 300) == 10**300 - 1
    assert parse_number("9" * 301) is None
    assert parse_number(r"-\frac{-3}{-6}") == Fraction(-1, 2)
