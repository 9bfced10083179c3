"""docs/drift.md shows what benchmarks/corrections.json holds."""

import json

from benchmarks.corrections import MISMATCHES, REPOSITORY, RESULTS, SEEDS, table

COMPARED = ("none", "tis", "icepop", "geometric", "k2_5")


def test_tables_in_the_docs_are_those_of_the_results() -> None:
    results = json.loads(RESULTS.read_text())["results"]
    page = (REPOSITORY / "docs/drift.md").read_text()
    assert set(results) <= set(MISMATCHES)
    for mismatch in results:
        assert table(results[mismatch]) in page, "put `python benchmarks/corrections.py --table` into docs/drift.md"


def test_every_correction_was_run_with_every_seed() -> None:
    results = json.loads(RESULTS.read_text())["results"]
    whole = next(iter(MISMATCHES))
    for way in COMPARED:
        assert set(results[whole][way]) == {str(seed) for seed in SEEDS}
