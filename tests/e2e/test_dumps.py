"""A run's rollout dumps hold what its metrics were formed from, and need pyarrow alone to be read."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.forked_runs import train
from tests.runs import REPOSITORY, metrics

pytestmark = pytest.mark.parallel


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny finished run of two processes, which dumped its steps 2 and 4."""
    folder = tmp_path_factory.mktemp("dumps") / "run"
    more = ("observe.dump_every=2", "rl.steps=5", "parallel.world_size=2", "rl.correction.veto=0.01")
    finished = train(f"output_dir={folder}", "rl.correction.mode=decoupled", *more)
    assert finished.returncode == 0, finished.stderr
    return folder


def flat(table, name):
    return table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float64)


def test_one_file_a_dumped_step(run: Path) -> None:
    assert sorted(path.name for path in (run / "dumps").iterdir()) == ["step-00000002.parquet", "step-00000004.parquet"]


def test_statistics_of_a_dump_are_those_of_the_metrics(run: Path) -> None:
    """Every response is there, the trained and the others, with the log-probs that the metrics are of."""
    of_step = {line["step"]: line for line in metrics(run) if line["phase"] == "rl"}
    for step in (2, 4):
        table = pq.read_table(run / f"dumps/step-{step:08d}.parquet")
        assert table.num_rows == 16
        delta = flat(table, "old_log_probs") - flat(table, "rollout_log_probs")
        line = of_step[step]
        assert len(delta) == line["drift/tokens"]
        # fp64 sums of some hundred terms in another order
        assert math.isclose(np.abs(delta).mean(), line["drift/abs_mean"], rel_tol=1e-12)
        assert np.abs(delta).max() == line["drift/abs_max"]
        # a mean in fp32
        assert math.isclose(flat_rewards(table).mean(), line["reward/mean"], rel_tol=16 * 2.0**-24)
        assert flat(table, "trained").mean() == pytest.approx(line["correction/kept_share"], rel=1e-6)


def flat_rewards(table):
    return table["reward"].to_numpy()


def test_each_list_has_one_element_a_token(run: Path) -> None:
    rows = pq.read_table(run / "dumps/step-00000004.parquet").to_pylist()
    for row in rows:
        tokens = len(row["response_ids"])
        for name in ("trained", "old_log_probs", "rollout_log_probs", "reference_log_probs", "advantages"):
            assert len(row[name]) == tokens
        assert row["versions"] == [{"version": 3, "start": 0, "end": tokens, "replica": None}]
        assert row["step"] == 4
        assert row["finish_reason"] == ("stop" if row["response_ids"][-1] == row["stop_token_id"] else "length")
    assert len({(row["problem_id"], row["sample"]) for row in rows}) == 16


def test_the_texts_are_those_of_the_ids(run: Path) -> None:
    file = pq.ParquetFile(run / "dumps/step-00000002.parquet")
    pieces = json.loads(file.schema_arrow.metadata[b"megarl.pieces"])
    for row in file.read().to_pylist():
        text = "".join(pieces[str(token)] for token in row["response_ids"] if token != row["stop_token_id"])
        assert text == row["response"]


def test_the_file_says_whose_it_is(run: Path) -> None:
    header = json.loads(pq.read_schema(run / "dumps/step-00000002.parquet").metadata[b"megarl.dump"])
    assert header["schema_version"] == 1
    assert header["step"] == 2
    assert header["recipe_hash"] == json.loads((run / "run.json").read_text())["recipe_hash"]
    assert header["engine"] == "embedded"
    assert len(header["tokenizer"]) == 64


def test_docs_name_every_column(run: Path) -> None:
    page = (REPOSITORY / "docs/dumps.md").read_text()
    for name in pq.read_schema(run / "dumps/step-00000002.parquet").names:
        assert f"| `{name}`" in page or f", `{name}`" in page, name
