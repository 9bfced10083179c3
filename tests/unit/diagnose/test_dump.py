"""`megarl drift diagnose` on a dump that is written here, beside the model that scored it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from megarl.cli import main
from megarl.config.model import TokenizerConfig
from megarl.data.tokenizer import build_tokenizer, save_tokenizer
from megarl.diagnose.read import read_rollouts
from megarl.diagnose.selftest.scene import Scene
from megarl.diagnose.selftest.small import VOCAB
from megarl.drift.diagnosis import Rollouts, Sampling
from megarl.dumps.errors import DumpError
from megarl.dumps.open import open_dump
from megarl.dumps.responses import Sampled
from tests.unit.diagnose.written import write


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


def test_what_is_read_is_what_was_written(rollouts: Rollouts, tmp_path: Path) -> None:
    dump = open_dump(write(tmp_path / "step-00000001.parquet", rollouts))
    read = read_rollouts(dump, len(rollouts.ids_BT), Sampled())
    assert read.ids_BT.equal(rollouts.ids_BT)
    assert read.mask_BT.equal(rollouts.mask_BT)
    # the file's columns are fp32
    assert read.engine_N.equal(rollouts.engine_N.float().double())
    assert len(read_rollouts(dump, 5, Sampled()).ids_BT) == 5


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence that `diagnose` ends with."""
    # what saving a model has shown of its progress
    capsys.readouterr()
    assert main(["drift", "diagnose", *map(str, arguments)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("megarl: error: ") and told.err.count("\n") == 1
    return told.err


def test_a_dump_of_several_samplings_is_refused(
    rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = [0.5 + 0.5 * (row % 2) for row in range(len(rollouts.ids_BT))]
    assert "sampled in 2 ways" in refused(capsys, write(tmp_path / "a.parquet", rollouts, temperature=mixed))


def test_options_that_contradict_the_dump_are_refused(
    rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = write(tmp_path / "a.parquet", rollouts)
    assert "says temperature=1.0, not --temperature=0.7" in refused(capsys, dump, "--temperature", 0.7)
    assert "--older has weights from before --model" in refused(capsys, dump, "--older", tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.0), ("temperature", float("inf")), ("top_p", 1.5), ("top_k", -1)]
)
def test_a_dump_of_what_nothing_is_sampled_with_is_refused(
    rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: float
) -> None:
    dump = write(tmp_path / "a.parquet", rollouts, **{name: [value] * len(rollouts.ids_BT)})
    assert f"says {name}={value}, which no response is sampled with" in refused(capsys, dump)


@pytest.mark.parametrize(
    "words",
    [
        *(f"--temperature={value}" for value in ("nan", "inf", "0.0", "-1.0")),
        *(f"--top-p={value}" for value in ("nan", "0.0", "-1.0", "1.5")),
        *("--top-k=-1", "--stop-token-id=-1", "--responses=0"),
    ],
)
def test_what_nothing_was_sampled_with_is_refused_before_the_dump_is_read(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"megarl: error: {words} " in refused(capsys, "nothing.parquet", words)


@pytest.mark.parametrize("option", ["--model", "--older"])
def test_weights_that_are_not_whole_are_refused(
    option: str, scene: Scene, rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers would draw what is not there at random, and say so in a warning."""
    dump = write(tmp_path / "a.parquet", rollouts)
    whole, other = tmp_path / "whole", tmp_path / "other"
    for folder in (whole, other):
        scene.versions[0].save_pretrained(folder)
    models = ["--model", other] if option == "--model" else ["--model", whole, "--older", other]
    weights = other / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.norm.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    assert f'{option}="{other}" holds no tensor model.norm.weight' in refused(capsys, dump, *models)
    weights.unlink()
    assert f'{option}="{other}" holds neither model.safetensors nor' in refused(capsys, dump, *models)
    config = other / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"gpt2"'))
    assert f'{option}="{other}" holds a model of model_type=gpt2' in refused(capsys, dump, *models)


def test_a_column_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"response_ids": [[1]]}), tmp_path / "other.parquet")
    assert "has the columns response_ids, which no known dump has" in refused(capsys, tmp_path / "other.parquet")


def test_damaged_pages_are_told(rollouts: Rollouts, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rollouts)
    data = bytearray(path.read_bytes())
    # the footer, which says where the pages are, stays whole
    for place in range(4, len(data) // 2):
        data[place] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DumpError, match=r"a\.parquet is damaged"):
        read_rollouts(open_dump(path), 64, Sampled())


def test_weights_that_neither_side_had_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean = Scene.build("llama", 1, "fp32")
    clean.versions[1].save_pretrained(tmp_path / "older")
    dump = write(tmp_path / "step-00000001.parquet", clean.rollouts())
    said = refused(capsys, dump, "--model", tmp_path / "older", "--responses", "12")
    assert "is not what" in said and "the checkpoint of the step before it" in said


def test_a_model_of_another_vocabulary_is_refused(
    scene: Scene, rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.versions[0].save_pretrained(tmp_path / "model")
    ids = [[5, VOCAB + 7]] * len(rollouts.ids_BT)
    dump = write(tmp_path / "a.parquet", rollouts, prompt_ids=ids)
    said = refused(capsys, dump, "--model", tmp_path / "model")
    assert "was made with another tokenizer than --model=" in said and f"the token id {VOCAB + 7}" in said


def test_another_tokenizer_is_refused(
    scene: Scene, rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it is given itself, or lies beside the weights."""
    scene.versions[0].save_pretrained(tmp_path / "model")
    save_tokenizer(build_tokenizer(TokenizerConfig()), tmp_path / "model")
    dump = write(tmp_path / "a.parquet", rollouts, tokenizer="b" * 64)
    for option in ("--model", "--tokenizer"):
        said = refused(capsys, dump, option, tmp_path / "model")
        assert f"was made with another tokenizer than {option}=" in said


def test_steps_are_told_apart_where_weights_matter(
    scene: Scene, rollouts: Rollouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.versions[0].save_pretrained(tmp_path / "model")
    for step in (1, 2):
        write(tmp_path / f"dumps/step-{step:08d}.parquet", rollouts, step=step)
    assert "holds the steps 1 to 2" in refused(capsys, tmp_path, "--model", tmp_path / "model")
    assert main(["drift", "diagnose", str(tmp_path)]) in (0, 1)


def test_a_folder_without_dumps_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no step-*.parquet" in refused(capsys, tmp_path)


def test_a_file_that_is_not_there_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none.parquet does not exist" in refused(capsys, tmp_path / "none.parquet")
