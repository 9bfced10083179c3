"""Which checkpoints a save drops."""

import json
import math
from pathlib import Path

import pytest

from megarl.checkpoint.retention import Retention
from megarl.checkpoint.store import MANIFEST, CheckpointStore
from tests.unit.checkpoint.test_store import save

NAMES = ["0-sft-00000010", *(f"1-rl-{step:08d}" for step in (0, 10, 20, 30, 40, 50))]
SCORES = {"1-rl-00000010": 0.5, "1-rl-00000020": 0.9, "1-rl-00000030": 0.9, "1-rl-00000040": math.nan}


def steps_kept(retention: Retention) -> list[int]:
    dropped = retention.dropped(NAMES, SCORES)
    return [int(name[-8:]) for name in NAMES if name not in dropped and "rl" in name]


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(1), [50]),
        (Retention(3), [30, 40, 50]),
        (Retention(99), [0, 10, 20, 30, 40, 50]),
        (Retention(1, every=20), [0, 20, 40, 50]),
        # of two equal ones the later, and never what was not measured
        (Retention(1, best=1), [30, 50]),
        (Retention(1, best=9), [10, 20, 30, 50]),
        (Retention(1, best=1, better="min"), [10, 50]),
        (Retention(2, every=30, best=2), [0, 20, 30, 40, 50]),
    ],
)
def test_the_union_of_the_rules_stays(retention: Retention, kept: list[int]) -> None:
    assert steps_kept(retention) == kept


def test_a_store_ranks_by_the_scores_in_its_manifests(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, Retention(1, best=1))
    scores = {1: 0.2, 2: 0.8, 3: 0.4, 4: None, 5: 0.1}
    for step, score in scores.items():
        save(store, step, facts={} if score is None else {"score": score})
    assert [int(name[-8:]) for name in store.names()] == [2, 5]
    assert json.loads((tmp_path / store.names()[0] / MANIFEST).read_text())["score"] == 0.8
