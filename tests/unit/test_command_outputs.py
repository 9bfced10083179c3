"""Files that a command is to write are looked at before it begins."""

import os
from pathlib import Path

import pytest

from megarl.cli import main
from megarl.commands.output import check_outputs
from megarl.config.errors import UserError


def test_new_files_and_those_to_be_replaced_pass(tmp_path: Path) -> None:
    (tmp_path / "old.html").write_text("")
    check_outputs({"--html": tmp_path / "old.html", "--json": tmp_path / "new.json", "--more": None}, [tmp_path / "in"])


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("folder", "is a folder; name a file in it"),
        ("pipe", "is a device or pipe, which a file would take the place of; name a file"),
        ("nowhere/file", "which is no folder; make it, or name another file"),
        ("read/file", "which is no folder; make it, or name another file"),
        ("x" * 300, "cannot be written .File name too long.; name another file"),
        ("read", "is the same file as .*read, which is read; name another file"),
        ("link", "is the same file as .*read, which is read; name another file"),
        ("folder/../read", "is the same file as .*read, which is read; name another file"),
        ("html", "is the same file as --html, which is written; name another file"),
    ],
)
def test_what_cannot_be_written_or_would_be_lost_is_refused(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "read").write_text("what somebody wants to keep")
    (tmp_path / "link").symlink_to(tmp_path / "read")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=rf"^--json=\S+ .*{complaint}\.$"):
        check_outputs({"--html": tmp_path / "html", "--json": tmp_path / name}, [tmp_path / "read"])


@pytest.mark.parametrize(
    "arguments", [["budget", "recipes/demo/grpo_arithmetic.yaml", "--json"], ["report", "nothing.parquet", "--html"]]
)
def test_commands_look_before_they_begin(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", *arguments, "nowhere/file"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith(f"megarl: error: {arguments[-1]}=") and error.count("\n") == 1
