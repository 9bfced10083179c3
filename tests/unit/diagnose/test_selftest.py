"""`megarl drift selftest`: what counts as right, the table, the exit code."""

from dataclasses import replace

import pytest

from megarl.cli import main
from megarl.diagnose.selftest.run import FAULTS, faulty_case


def test_another_cause_another_side_or_other_words_are_not_right() -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == "stop token appended"]
    assert faulty_case(fault, "fp32", 2).right
    assert not faulty_case(replace(fault, cause="retokenised"), "fp32", 2).right
    assert not faulty_case(replace(fault, side="engine"), "fp32", 2).right


def test_clean_cases_alone_end_well(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", "selftest", "--seeds", "0", "--clean", "2", "--processes", "1"]) == 0
    assert "2 of 2 cases right" in capfd.readouterr().out


def test_no_process_is_a_mistake(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", "selftest", "--processes", "0"]) == 2
    assert capfd.readouterr().err.startswith("megarl: error: --processes=0 is below 1")
