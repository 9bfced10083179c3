"""`megarl drift diagnose DUMP` without a model, on dumps of small models with a fault planted, and without one."""

from pathlib import Path

import pytest

from megarl.cli import main
from megarl.diagnose.read import read_reported
from megarl.diagnose.selftest.fault import Fault
from megarl.diagnose.selftest.run import FAULTS
from megarl.diagnose.selftest.scene import PLAIN, Scene
from megarl.drift.diagnosis import Computation, Diagnosis, Rollouts, Sampling, diagnose_alone
from megarl.drift.diagnosis.computation import Dtype
from megarl.drift.diagnosis.distribution import Distributions
from megarl.dumps.open import open_dump
from megarl.dumps.responses import Sampled
from tests.unit.diagnose.written import write

NAMED = {
    "sampling temperature": ("temperature", "either"),
    "temperature forgotten by the trainer": ("temperature", "either"),
    "top-p without a mask": ("truncation", "engine"),
    "top-k without a mask": ("truncation", "engine"),
    "raw log-probs, temperature": ("raw_log_probs", "engine"),
    "raw log-probs, top-p": ("raw_log_probs", "engine"),
    "raw log-probs of both sides, top-p": ("raw_log_probs", "engine"),
    "stop token banned": ("truncation", "engine"),
    "engine's log-probs a token late": ("off_by_one", "either"),
    "stop token appended": ("stop_token", "trainer"),
}
"""What a dump alone tells of a planted fault; of the others it tells nothing."""
HIDDEN = ("stop token banned", "bf16")
"""A hundredth of the mass, which bf16 rounds as much as that."""
UNREADABLE = "trainer's log-probs a token early"
"""Its dump has tokens without the trainer's log-prob, and is refused."""
CASES: list[tuple[Fault, Dtype]] = [(fault, "fp32") for fault in FAULTS if fault.name != UNREADABLE]
CASES += [(fault, "bf16") for fault in FAULTS if fault.name in NAMED]


def looked_at(rollouts: Rollouts, folder: Path) -> Diagnosis:
    dump = open_dump(write(folder / "step-00000001.parquet", rollouts))
    return diagnose_alone(read_reported(dump, None, Sampled()))


def built(family: str, seed: int, dtype: Dtype, sampling: Sampling = PLAIN) -> Scene:
    scene = Scene.build(family, seed, dtype, sampling)
    scene.samples = 16
    return scene


@pytest.mark.parametrize(("fault", "dtype"), CASES, ids=[f"{fault.name}, {dtype}" for fault, dtype in CASES])
def test_what_a_dump_can_tell_is_named_and_nothing_else(fault: Fault, dtype: Dtype, tmp_path: Path) -> None:
    planted = fault.plant(built(fault.families[0], 1, dtype))
    found = [(finding.cause, finding.side) for finding in looked_at(planted.rollouts, tmp_path).findings]
    told = fault.name in NAMED and (fault.name, dtype) != HIDDEN
    assert found == ([NAMED[fault.name]] if told else [])


SAMPLINGS = (Sampling(), Sampling(0.7), Sampling(top_p=0.9), Sampling(1.2, top_k=20), Sampling(0.6, top_p=0.95))


@pytest.mark.parametrize("dtype", ("fp32", "bf16"))
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_clean_dump_has_no_cause(sampling: Sampling, dtype: Dtype, tmp_path: Path) -> None:
    diagnosis = looked_at(built("qwen3", 1, dtype, sampling).rollouts(), tmp_path)
    assert not diagnosis.findings
    assert diagnosis.alone is not None and diagnosis.alone.engine is not None


def test_the_fit_and_the_kept_mass_are_the_planted_ones(tmp_path: Path) -> None:
    scene = built("llama", 2, "fp32")
    scene.engine.samples = scene.engine.reports = Sampling(0.75)
    (finding,) = looked_at(scene.rollouts(), tmp_path).findings
    assert "temperature is 0.75 times the trainer's" in finding.evidence
    assert "either the engine's are at 0.75 or the trainer's at 1.333" in finding.evidence
    scene.engine.samples = scene.engine.reports = Sampling(top_p=0.8)
    rollouts = scene.rollouts()
    (finding,) = looked_at(rollouts, tmp_path).findings
    logits_NV = scene.model.logits(rollouts, Computation())
    kept = Distributions(logits_NV, rollouts.targets_N).kept_mass(Sampling(top_p=0.8))
    assert f"keeps a mass of {kept:.4g} on average" in finding.evidence
    assert "a top-p would be of at most that" in finding.evidence


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean = write(tmp_path / "step-00000001.parquet", built("llama", 1, "fp32").rollouts())
    assert main(["drift", "diagnose", str(clean)]) == 0
    said = capsys.readouterr().out
    assert "No cause shows in the dump alone." in said
    assert "A dump alone does not tell which side is wrong" in said
    assert "To decide: megarl drift diagnose DUMP --model FOLDER" in said


def test_too_few_samples_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lone = Scene.build("llama", 1, "fp32").rollouts()
    assert main(["drift", "diagnose", str(write(tmp_path / "step-00000001.parquet", lone))]) == 0
    assert "0 differences in 0 places are here, and 17 of both are needed" in capsys.readouterr().out
