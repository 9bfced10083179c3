"""Values become one word of bash, whatever is in them."""

import subprocess
from pathlib import Path

import pytest

from megarl.submit.profile import ProfileError
from megarl.submit.shell import Directive, directive, finalize, job_name, shell_word
from tests.unit.submit.hostile import MARK, VALUES


@pytest.mark.parametrize("value", VALUES)
def test_bash_reads_back_the_value(value: str, tmp_path: Path) -> None:
    word = shell_word(value)
    assert "\n" not in word
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {word}"], cwd=tmp_path, capture_output=True, timeout=20, check=True
    )
    assert done.stdout.decode() == value + "\0"
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_what_no_argument_can_hold_is_refused(value: str) -> None:
    with pytest.raises(ProfileError, match="zero byte"):
        shell_word(value)


@pytest.mark.parametrize("value", [value for value in VALUES if value not in ("-rf",)])
def test_a_directive_holds_none_of_them(value: str) -> None:
    with pytest.raises(ProfileError, match="#SBATCH"):
        directive("partition", value)


def test_what_directives_need_is_allowed() -> None:
    for value in ("--array=0-3%2", "a100|h100", "[rack1*2&rack2*4]", "1-00:00:00", "user@host", "~x", "64G"):
        assert directive("constraint", value) == value


def test_a_job_is_named_like_its_run() -> None:
    assert job_name("grpo-v1.2_a") == "grpo-v1.2_a"
    assert job_name("a b\n$(x)") == "a_b___x_"
    assert job_name("") == "_"


def test_only_directives_stay_bare() -> None:
    assert finalize("$x") == "'$x'"
    assert finalize(Directive("--nodes=2")) == "--nodes=2"
    assert finalize(3) == "3" and finalize(0.5) == "0.5"
    for value in (None, True, ["a"]):
        with pytest.raises(TypeError):
            finalize(value)
