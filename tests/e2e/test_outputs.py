"""What a run leaves behind is what README and docs say."""

import json
import re
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.runs import REPOSITORY, metrics, train, undocumented

pytestmark = pytest.mark.parallel


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny finished run."""
    folder = tmp_path_factory.mktemp("outputs") / "run"
    finished = train(f"output_dir={folder}", "rl.steps=3")
    assert finished.returncode == 0, finished.stderr
    assert "pass@1" in finished.stdout
    assert finished.stderr == "", "a run without a fault has nothing to complain of"
    return folder


def test_files_that_the_readme_lists(run: Path) -> None:
    """Every file of README's table is there."""
    table = re.search(r"\| file \|.*?\n\n", (REPOSITORY / "README.md").read_text(), re.S)
    assert table
    names = re.findall(r"`([\w./]+)`", table[0])
    assert len(names) >= 9
    for name in names:
        assert (run / name).exists(), name


def test_every_metric_is_documented(run: Path) -> None:
    """docs/metrics.md and docs/drift.md name each key of metrics.jsonl."""
    for line in metrics(run):
        assert undocumented(line.keys() - {"phase", "step"}) == []


def test_samples_are_readable(run: Path) -> None:
    """Rollouts as text, with their reward and weight version."""
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 3 * 4
    assert {sample["weight_version"] for sample in samples} == {0, 1, 2}
    assert all(re.fullmatch(r"[\d+-]+=", sample["prompt"]) for sample in samples)


def test_model_loads_in_transformers(run: Path) -> None:
    """model/ is what transformers reads, and the weights are not those that RL started from."""
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    before = AutoModelForCausalLM.from_pretrained(run / "reference")
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer("12+7=19").input_ids) == "12+7=19"
    assert any((a != b).any() for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_links_in_the_docs_lead_somewhere() -> None:
    """Relative links of README, CONTRIBUTING and docs/."""
    for page in [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
