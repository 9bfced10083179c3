"""docs/drift.md shows what benchmarks/corrections.json holds."""

import json

from benchmarks.corrections import COMPARED, REPOSITORY, RESULTS, SEEDS, SETTINGS, table


def test_tables_in_the_docs_are_those_of_the_results() -> None:
    results = json.loads(RESULTS.read_text())["results"]
    page = (REPOSITORY / "docs/drift.md").read_text()
    assert set(results) == set(SETTINGS)
    for setting in results:
        assert table(results[setting]) in page, "put `python benchmarks/corrections.py --table` into docs/drift.md"


def test_every_correction_was_run_with_every_seed() -> None:
    results = json.loads(RESULTS.read_text())["results"]
    whole = next(iter(SETTINGS))
    for way in COMPARED:
        assert set(results[whole][way]) == {str(seed) for seed in SEEDS}
