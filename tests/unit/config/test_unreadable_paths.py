"""Paths that cannot even be looked at are mistakes of the user's, as those of files that are not there.

Names that no file system takes stand for folders that the user may not search, which a superuser always may.
"""

from pathlib import Path

import pytest

from megarl.cli import main

DEMO = "recipes/demo/grpo_arithmetic.yaml"
FILE = "recipes/demo/grpo_file.yaml"
LONG = "x" * 300


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["plan", DEMO, f"model.init_from={LONG}"], "model.init_from"),
        (["plan", DEMO, f"tokenizer={{kind: hf, path: {LONG}}}"], "tokenizer.path"),
        (["plan", FILE, f"data.path={LONG}.jsonl"], "data.path"),
        (["train", DEMO, f"output_dir={LONG}"], "output_dir"),
        (["drift", "diagnose", LONG], ""),
        (["drift", "report", LONG], ""),
        (["convert", LONG, "new"], ""),
        (["compare", LONG, LONG], ""),
    ],
)
def test_they_are_one_sentence(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absolute = [str(Path(word).resolve()) if word in (DEMO, FILE) else word for word in arguments]
    monkeypatch.chdir(tmp_path)
    assert main(absolute) == 2
    said = capsys.readouterr().err
    assert said.startswith("megarl: error: ") and said.count("\n") == 1 and f"{name}" in said
    assert list(tmp_path.iterdir()) == []
