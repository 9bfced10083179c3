"""`megarl drift diagnose` on a dump that is written here, beside the model that scored it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megarl.cli import main
from megarl.diagnose.dump import read_rollouts
from megarl.diagnose.selftest.scene import Scene
from megarl.drift.diagnosis import Rollouts, Sampling
from megarl.dumps.errors import DumpError
from megarl.dumps.schema import SCHEMA, Header, file_metadata


def write(file: Path, rollouts: Rollouts, **others: list[float]) -> Path:
    """The rollouts under megarl's columns; `others` replace whole columns."""
    count = len(rollouts.ids_BT)
    spans = list(zip(rollouts.prompt_lengths_B.tolist(), rollouts.lengths_B.tolist(), strict=True))

    def cut(values: object) -> list[list[float]]:
        return [values[row, begin:end].tolist() for row, (begin, end) in enumerate(spans)]  # type: ignore[index]

    columns = {
        "step": [1] * count,
        "problem_id": [str(row) for row in range(count)],
        "sample": [0] * count,
        "prompt_ids": [rollouts.ids_BT[row, :begin].tolist() for row, (begin, _) in enumerate(spans)],
        "response_ids": cut(rollouts.ids_BT),
        "old_log_probs": cut(rollouts.trainer_log_probs_BT),
        "rollout_log_probs": cut(rollouts.engine_log_probs_BT),
        "temperature": [rollouts.sampling.temperature] * count,
        "top_p": [rollouts.sampling.top_p] * count,
        "top_k": [rollouts.sampling.top_k] * count,
        "stop_token_id": [rollouts.stop_token_id] * count,
        **others,
    }
    arrays = [pa.array(columns.get(field.name, [None] * count), field.type) for field in SCHEMA]
    header = Header("run", 1, "0" * 64, None, "vllm", "fp32", "0")
    pq.write_table(pa.table(arrays, SCHEMA.with_metadata(file_metadata(header, {}))), file)
    return file


@pytest.fixture(scope="module")
def scene() -> Scene:
    """An engine that samples at another temperature than it is believed to."""
    built = Scene.build("llama", 1, "fp32")
    built.engine.samples = built.engine.reports = Sampling(0.7)
    return built


@pytest.fixture(scope="module")
def rollouts(scene: Scene) -> Rollouts:
    return scene.rollouts()


def test_the_cause_is_named(
    scene: Scene, rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.versions[0].save_pretrained(tmp_path / "model")
    dump = write(tmp_path / "step-00000001.parquet", rollouts)
    assert main(["drift", "diagnose", str(dump), "--model", str(tmp_path / "model"), "--responses", "12"]) == 1
    said = capsys.readouterr().out
    assert "1. temperature, on the engine's side: its log-probs are those at a temperature of 0.7," in said
    assert "Floor: " in said and "Fix: " in said


def test_without_a_model_only_the_tokens_are_looked_at(
    rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drift", "diagnose", str(write(tmp_path / "step-00000001.parquet", rollouts))]) == 0
    assert "No cause shows in the tokens alone" in capsys.readouterr().out


def test_what_is_read_is_what_was_written(rollouts: Rollouts, tmp_path: Path) -> None:
    read = read_rollouts(write(tmp_path / "step-00000001.parquet", rollouts), len(rollouts.ids_BT))
    assert read.ids_BT.equal(rollouts.ids_BT)
    assert read.mask_BT.equal(rollouts.mask_BT)
    # the file's columns are fp32
    assert read.engine_N.equal(rollouts.engine_N.float().double())


def test_a_dump_of_several_samplings_is_refused(rollouts: Rollouts, tmp_path: Path) -> None:
    mixed = [0.5 + 0.5 * (row % 2) for row in range(len(rollouts.ids_BT))]
    dump = write(tmp_path / "step-00000001.parquet", rollouts, temperature=mixed)
    with pytest.raises(DumpError, match="sampled in 2 ways"):
        read_rollouts(dump, 10)


def test_another_trainers_file_is_refused_with_the_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"response_ids": [[1]]}), tmp_path / "other.parquet")
    with pytest.raises(DumpError, match="has no column prompt_ids"):
        read_rollouts(tmp_path / "other.parquet", 10)


def test_damaged_pages_are_told(rollouts: Rollouts, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rollouts)
    data = bytearray(path.read_bytes())
    # the footer, which says where the pages are, stays whole
    for place in range(4, len(data) // 2):
        data[place] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DumpError, match=r"a\.parquet is damaged"):
        read_rollouts(path, 64)


def test_weights_that_neither_side_had_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean = Scene.build("llama", 1, "fp32")
    clean.versions[1].save_pretrained(tmp_path / "older")
    dump = write(tmp_path / "step-00000001.parquet", clean.rollouts())
    assert main(["drift", "diagnose", str(dump), "--model", str(tmp_path / "older"), "--responses", "12"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "is not what" in told.err and "the checkpoint of the step before it" in told.err


def test_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", "diagnose", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", "diagnose", str(tmp_path / "none.parquet")]) == 2
    assert "none.parquet does not exist" in capsys.readouterr().err
