"""The digest of a source tells its problems apart, whatever the file that holds them looks like."""

import json
from pathlib import Path

from megarl.config.data import DataConfig
from megarl.data.chain_arithmetic import ChainArithmetic
from megarl.data.content import content_fingerprint
from megarl.data.file_source import FileSource

ROWS = [{"prompt": f"{number}?", "answer": str(number), "worked": f"so {number}"} for number in range(6)]


def fingerprint(folder: Path, rows: list[dict[str, str]], seed: int = 0, indent: str = "") -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{indent}{json.dumps(row)}\n" for row in rows))
    data = DataConfig("file", str(path), eval_prompts=2, demonstration_column="worked")
    return content_fingerprint(FileSource(seed, data))


def test_every_text_of_a_row_and_their_order_count(tmp_path: Path) -> None:
    others = [
        [{**ROWS[1], "answer": "7"}, *ROWS[:1], *ROWS[2:]],
        [*ROWS[:1], {**ROWS[1], "worked": "no"}, *ROWS[2:]],
        [*ROWS[:1], {**ROWS[1], "prompt": "8?"}, *ROWS[2:]],
        [ROWS[1], ROWS[0], *ROWS[2:]],
        # an evaluation problem
        [*ROWS[:5], {**ROWS[5], "answer": "7"}],
        ROWS[1:],
    ]
    found = {fingerprint(tmp_path, rows) for rows in (ROWS, *others)}
    assert len(found) == 1 + len(others)


def test_how_they_are_written_and_the_seed_do_not(tmp_path: Path) -> None:
    assert fingerprint(tmp_path, ROWS) == fingerprint(tmp_path, ROWS, seed=1, indent="  ")


def test_a_source_without_a_file_has_one_too() -> None:
    first, other = (content_fingerprint(ChainArithmetic(0, DataConfig(eval_prompts=count))) for count in (4, 5))
    assert first != other
