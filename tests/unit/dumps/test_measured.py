"""A dump's statistics are those of its log-probs, whichever chunk they came in."""

from pathlib import Path

import numpy as np
import pytest
import torch

from megarl.drift.corrections import RejectTokens
from megarl.drift.measures import drift_metrics
from megarl.dumps.errors import DumpError
from megarl.dumps.kept import padded as batches_by_length
from megarl.dumps.measured import measured
from megarl.dumps.open import open_dump
from megarl.dumps.statistics import statistics
from tests.unit.dumps.made import rows, write, write_jsonl
from tests.unit.dumps.test_importers import verl

LENGTHS = [(index * 7) % 23 for index in range(600)]
"""Three chunks, with empty responses."""


def padded(columns, name: str) -> torch.Tensor:
    wide = torch.zeros(len(columns[name]), max(map(len, columns[name])), dtype=torch.float64)
    for row, values in enumerate(columns[name]):
        # the file has fp32
        wide[row, : len(values)] = torch.tensor(np.asarray(values, dtype=np.float32)).double()
    return wide


def test_statistics_are_those_of_a_step(tmp_path: Path) -> None:
    """The same names and numbers as a run's metrics of the padded batch; only the order of summation differs."""
    columns = rows(LENGTHS, drift=0.5)
    mask = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
    expected = drift_metrics(padded(columns, "old_log_probs"), padded(columns, "rollout_log_probs"), mask)
    found = statistics(measured(open_dump(write(tmp_path / "a.parquet", columns))))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # some 6600 terms; k1 alone cancels, down to a hundredth of its terms' size
        assert found[name] == pytest.approx(value, rel=1e-10, abs=1e-300), name


def test_positions_count_generated_tokens_alone(tmp_path: Path) -> None:
    many = [{**verl(), "response_mask": mask} for mask in ([1, 0, 1], [0, 0, 1], [1, 1, 1])]
    found = measured(open_dump(write_jsonl(tmp_path / "a.jsonl", many)))
    assert found.ratios.position_N.tolist() == [0, 1, 0, 0, 1, 2]
    assert found.tokens_R.tolist() == [2, 1, 3]
    assert found.tokens == 6


def test_what_a_correction_keeps_is_counted_over_all_chunks(tmp_path: Path) -> None:
    columns = rows(LENGTHS, drift=0.1)
    found = measured(open_dump(write(tmp_path / "a.parquet", columns)))
    kept = {row.candidate.short: row for row in found.kept}
    ratio = np.exp(np.concatenate(columns["old_log_probs"]) - np.concatenate(columns["rollout_log_probs"]))
    rule = RejectTokens()
    inside = (ratio >= rule.low) & (ratio <= rule.high)
    assert 0 < inside.mean() < 1
    assert kept["token"].token_share == pytest.approx(inside.mean(), abs=1e-12)
    assert kept["tis"].token_share == kept["tis"].response_share == 1
    # fp32 weights
    assert kept["tis"].weight_mean == pytest.approx(np.minimum(ratio, 2).mean(), rel=1e-6)
    sums = [float((old - rollout).sum()) for old, rollout in _responses(columns) if len(old)]
    within = np.abs(sums) <= np.log(2)
    assert 0 < within.mean() < 1
    assert kept["sequence"].response_share == pytest.approx(within.mean(), abs=1e-12)


def _responses(columns):
    return zip(columns["old_log_probs"], columns["rollout_log_probs"], strict=True)


def test_a_long_response_pads_no_short_ones(tmp_path: Path) -> None:
    columns = rows([1000, *([3, 0, 1, 2, 4, 5] * 10)])
    [chunk] = open_dump(write(tmp_path / "a.parquet", columns)).read()
    batches = list(batches_by_length(chunk))
    assert sum(len(mask) for _, _, mask in batches) == 61
    # a response of no token has one place
    assert all(mask.numel() <= 2 * mask.sum() + len(mask) for _, _, mask in batches)
    expected = sorted(tuple(np.float32(values).tolist()) for values in columns["old_log_probs"])
    assert expected == sorted(
        tuple(values[held].tolist()) for trainer, _, mask in batches for values, held in zip(trainer, mask, strict=True)
    )


def test_the_worst_responses_are_found_in_any_chunk(tmp_path: Path) -> None:
    columns = rows([5] * 600, drift=0.01)
    columns["old_log_probs"][3][2] -= 9.0
    columns["old_log_probs"][500] = columns["rollout_log_probs"][500] - 3.0
    worst = measured(open_dump(write(tmp_path / "a.parquet", columns))).worst
    assert len(worst) <= 8
    assert worst[0].key.problem_id == "p1" and worst[0].key.sample == 1
    assert worst[0].largest == pytest.approx(9.0, abs=0.1)
    assert worst[0].log_ratio[2] == pytest.approx(-9.0, abs=0.1)
    by_mean = max(worst, key=lambda sample: sample.mean)
    assert by_mean.key.problem_id == "p250" and by_mean.mean == pytest.approx(3.0, abs=1e-6)


def test_no_drift_has_no_worst_response(tmp_path: Path) -> None:
    assert measured(open_dump(write(tmp_path / "a.parquet", rows(drift=0.0)))).worst == []


def test_a_dump_without_the_engines_log_probs(tmp_path: Path) -> None:
    columns = rows()
    columns["rollout_log_probs"] = [[None] * len(values) for values in columns["rollout_log_probs"]]
    with pytest.raises(DumpError, match="no token with a finite log-prob of trainer and engine both"):
        measured(open_dump(write(tmp_path / "a.parquet", columns)))


def test_a_dump_without_a_response(tmp_path: Path) -> None:
    columns = {**{name: values[:0] for name, values in rows().items()}}
    path = write(tmp_path / "a.parquet", {**columns, "step": np.array([], dtype=np.int64)}, step=1)
    with pytest.raises(DumpError, match="holds no response"):
        measured(open_dump(path))
