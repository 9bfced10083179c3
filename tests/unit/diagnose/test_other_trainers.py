"""Report, comparison and diagnosis on dumps of every trainer: through one door, with the same answers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from megarl.cli import main
from megarl.diagnose.selftest.scene import Scene
from megarl.drift.diagnosis import Rollouts, Sampling
from tests.unit.diagnose.written import write
from tests.unit.dumps.made import write_jsonl

SAMPLES = 16


@pytest.fixture(scope="module")
def scene() -> Scene:
    """An engine at a temperature of 0.75, beside a trainer at 1."""
    built = Scene.build("llama", 3, "fp32")
    built.samples = SAMPLES
    built.engine.samples = built.engine.reports = Sampling(0.75)
    return built


@pytest.fixture(scope="module")
def rollouts(scene: Scene) -> Rollouts:
    return scene.rollouts()


def told(rollouts: Rollouts, step: int) -> list[dict[str, Any]]:
    """Each response's prompt, tokens and log-probs."""
    rows = []
    for row in range(len(rollouts.ids_BT)):
        prompt, end = int(rollouts.prompt_lengths_B[row]), int(rollouts.lengths_B[row])
        rows.append(
            {
                "step": step,
                "group": f"p{row // SAMPLES}",
                "prompt": rollouts.ids_BT[row, :prompt].tolist(),
                "tokens": rollouts.ids_BT[row, prompt:end].tolist(),
                "trainer": rollouts.trainer_log_probs_BT[row, prompt:end].tolist(),
                "engine": rollouts.engine_log_probs_BT[row, prompt:end].tolist(),
            }
        )
    return rows


def verl(file: Path, rows: list[dict[str, Any]]) -> Path:
    return write_jsonl(
        file.with_suffix(".jsonl"),
        [
            {
                "input": row["group"],
                "output": "",
                "score": 1.0,
                "step": row["step"],
                "prompts": row["prompt"],
                "responses": row["tokens"],
                "old_log_probs": row["trainer"],
                "rollout_log_probs": row["engine"],
            }
            for row in rows
        ],
    )


def trl(file: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [
        {
            "step": row["step"],
            "prompt": row["group"],
            "completion": "",
            "reward": 1.0,
            "prompt_ids": row["prompt"],
            "completion_ids": row["tokens"],
            "old_per_token_logps": row["trainer"],
            "sampling_per_token_logps": row["engine"],
        }
        for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(lines), file.with_suffix(".parquet"))
    return file.with_suffix(".parquet")


def prime_rl(file: Path, rows: list[dict[str, Any]]) -> Path:
    return write_jsonl(
        file.with_suffix(".jsonl"),
        [
            {
                "export_step": row["step"],
                "export_sequence_idx": number,
                "token_ids": row["prompt"] + row["tokens"],
                "loss_mask": [False] * len(row["prompt"]) + [True] * len(row["tokens"]),
                "trainer_logprobs": [None] * len(row["prompt"]) + row["trainer"],
                "inference_logprobs": [None] * len(row["prompt"]) + row["engine"],
            }
            for number, row in enumerate(rows)
        ],
    )


def slime(file: Path, rows: list[dict[str, Any]]) -> Path:
    data = {
        "tokens": [torch.tensor(row["prompt"] + row["tokens"]) for row in rows],
        "response_lengths": [len(row["tokens"]) for row in rows],
        "log_probs": [torch.tensor(row["trainer"], dtype=torch.float32) for row in rows],
        "rollout_log_probs": [torch.tensor(row["engine"], dtype=torch.float32) for row in rows],
        "rewards": [1.0] * len(rows),
    }
    torch.save({"rollout_id": rows[0]["step"], "rollout_data": data}, file.with_suffix(".pt"))
    return file.with_suffix(".pt")


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], Path]] = {
    "verl": verl,
    "TRL": trl,
    "prime-rl": prime_rl,
    "slime": slime,
}


@pytest.mark.parametrize("trainer", WRITERS)
def test_the_same_cause_from_every_trainers_file(
    trainer: str, scene: Scene, rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = str(WRITERS[trainer](tmp_path / "4", told(rollouts, step=1)))
    assert main(["drift", "diagnose", dump]) == 1
    said = capsys.readouterr().out
    assert "1. temperature, on one side: " in said and "temperature is 0.75 times the trainer's" in said
    scene.versions[0].save_pretrained(tmp_path / "model")
    known = ("--dtype", "fp32", "--temperature", "1", "--responses", "16")
    assert main(["drift", "diagnose", dump, "--model", str(tmp_path / "model"), *known]) == 1
    assert "1. temperature, on the engine's side: its log-probs are those at a temperature of 0.75," in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("trainer", WRITERS)
def test_a_folder_of_files_is_one_dump(
    trainer: str, rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the numbers of the same responses in megarl's own files."""
    numbers = []
    for folder in ("theirs", "own"):
        (tmp_path / folder).mkdir()
        for step in (9, 10):
            if folder == "own":
                write(tmp_path / f"own/step-{step:08d}.parquet", rollouts, step=step)
            else:
                WRITERS[trainer](tmp_path / folder / str(step), told(rollouts, step))
        page, as_json = tmp_path / f"{folder}.html", tmp_path / f"{folder}.json"
        assert main(["drift", "report", str(tmp_path / folder), "--html", str(page), "--json", str(as_json)]) == 0
        numbers.append(json.loads(as_json.read_text())["numbers"])
    # the one is in fp64 in its file, the other in fp32
    assert numbers[0]["abs_mean"] == pytest.approx(numbers[1]["abs_mean"], rel=1e-5)
    assert numbers[0]["tokens"] == numbers[1]["tokens"] == 2 * int(rollouts.mask_BT.sum())
    capsys.readouterr()
    assert main(["drift", "compare", str(tmp_path / "theirs"), str(tmp_path / "own"), "--resamples", "100"]) == 0
    assert "No difference is beyond chance." in capsys.readouterr().out
    assert main(["drift", "diagnose", str(tmp_path / "theirs")]) == 1
    assert "1. temperature, on one side: " in capsys.readouterr().out


def bad_dumps(folder: Path, rollouts: Rollouts) -> dict[str, Path]:
    """Files and folders that cannot be read, by what is said of them."""
    rows = told(rollouts, step=1)[:8]
    cut = write(folder / "cut.parquet", rollouts)
    cut.write_bytes(cut.read_bytes()[:-100])
    short = verl(folder / "short", rows)
    short.write_text(short.read_text()[:-9])
    nan = verl(folder / "nan", [*rows, {**rows[0], "trainer": [float("nan")] * len(rows[0]["tokens"])}])
    unequal = prime_rl(folder / "unequal", [{**rows[0], "engine": [-1.0]}])
    missing = write_jsonl(folder / "missing.jsonl", [{"input": "", "output": "", "score": 0.0}])
    huge = verl(folder / "huge", [{**rows[0], "tokens": [2**70] * len(rows[0]["tokens"])}])
    (folder / "mixed").mkdir()
    verl(folder / "mixed/1", rows)
    slime(folder / "mixed/2", rows)
    for step, tokenizer in ((1, "a" * 64), (2, "b" * 64)):
        write(folder / f"two/step-{step:08d}.parquet", rollouts, step=step, tokenizer=tokenizer)
    return {
        "is no whole parquet file": cut,
        ": not JSON": short,
        "NaN among its trainer_log_probs": nan,
        "1 rollout_log_probs for": unequal,
        "without responses, old_log_probs, rollout_log_probs": missing,
        "a value of another kind in row 1": huge,
        "is a dump of slime, and": folder / "mixed",
        "was made with another tokenizer than": folder / "two",
        "does not exist": folder / "none.parquet",
    }


def test_a_bad_dump_is_one_sentence_in_every_command(
    rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = str(write(tmp_path / "good/step-00000001.parquet", rollouts))
    for words, path in bad_dumps(tmp_path, rollouts).items():
        for arguments in (
            ["report", str(path), "--html", str(tmp_path / "page.html")],
            ["compare", good, str(path)],
            ["compare", str(path), good],
            ["diagnose", str(path)],
        ):
            assert main(["drift", *arguments]) == 2, (arguments, words)
            said = capsys.readouterr().err
            assert said.startswith("megarl: error: ") and said.count("\n") == 1, said
            assert words in said, said
    assert not (tmp_path / "page.html").exists()


def test_what_experiments_need_and_a_file_lacks_is_said(
    scene: Scene, rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.versions[0].save_pretrained(tmp_path / "model")
    rows = told(rollouts, step=1)
    model = ("--model", str(tmp_path / "model"))
    dump = str(verl(tmp_path / "whole", rows))
    bare = str(
        write_jsonl(
            tmp_path / "bare.jsonl",
            [
                {name: value for name, value in json.loads(line).items() if name != "prompts"}
                for line in Path(dump).read_text().splitlines()
            ],
        )
    )
    for given, words in (
        ((dump, *model), "does not say how it was sampled"),
        ((dump, *model, "--temperature", "1"), "does not say the trainer's precision"),
        ((bare, *model, "--temperature", "1", "--dtype", "fp32"), "without its prompt's token ids"),
    ):
        assert main(["drift", "diagnose", *given]) == 2
        assert words in capsys.readouterr().err
