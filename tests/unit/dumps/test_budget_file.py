"""A drift budget in its file, in the report of a dump beside it, and files that are none."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from megarl.drift.budget import Budget, Part
from megarl.dumps.budget import BUDGET_FILE, budget_beside, read_budget, write_budget
from megarl.dumps.errors import DumpError
from megarl.dumps.report.budget import by_ages, rows, show
from tests.unit.dumps import made
from tests.unit.dumps.test_report import Page, report

BUDGET = Budget(
    Part("total", "all <b>of it</b>", 1000, 0.02, 0.001, 4e-4, 2e-5),
    (
        Part("precision, trainer", "bf16 less fp32", 1000, 0.018, 0.001, 3e-4, 2e-5),
        Part("kernel", "one response", 40, 1e-7, math.nan, 1e-14, math.nan),
    ),
    (Part("floor, trainer", "alone", 1000, 1e-8, 1e-9, 1e-16, 1e-17),),
    ("staleness: none",),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_budget(tmp_path / "budget.json", BUDGET)
    found = read_budget(tmp_path / "budget.json")
    assert repr(found) == repr(BUDGET)


def test_rows_have_shares_that_add_up_to_the_whole() -> None:
    found = list(rows(BUDGET))
    assert [row[0] for row in found] == ["total", "precision, trainer", "kernel", "remainder", "floor, trainer"]
    assert [row[-1] for row in found] == ["100 %", "75 %", "< 0.01 %", "25 %", ""]
    assert found[1][3:5] == ("0.018 ± 0.001", "0.0003 ± 2e-05") and found[2][3] == "1e-07"


@pytest.mark.parametrize("place", ["beside", "above", "named"])
def test_the_report_shows_it(tmp_path: Path, place: str) -> None:
    dump = made.write(tmp_path / "dumps" / "step-00000001.parquet", made.rows([7] * 40))
    file = {"beside": dump.parent, "above": tmp_path, "named": tmp_path / "elsewhere"}[place] / BUDGET_FILE
    file.parent.mkdir(exist_ok=True)
    write_budget(file, BUDGET)
    text, _ = report(dump, tmp_path, *(["--budget", str(file)] if place == "named" else []))
    Page(text)
    assert "bf16 less fp32" in text and "75 %" in text and "Not in it: staleness: none." in text
    assert "all &lt;b&gt;of it&lt;/b&gt;" in text


def test_a_runs_folder_has_its_own_and_no_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = tmp_path / "run" / "dumps"
    dump = made.write(dumps / "step-00000001.parquet", made.rows([7] * 40))
    write_budget(tmp_path / BUDGET_FILE, BUDGET)
    assert budget_beside(tmp_path / "run") is None and budget_beside(dumps) is None and budget_beside(dump) is None
    for folder in (tmp_path / "run", dumps):
        write_budget(folder / BUDGET_FILE, BUDGET)
        for named in (tmp_path / "run", dumps, dump):
            assert budget_beside(named) == folder / BUDGET_FILE
        monkeypatch.chdir(dumps)
        assert budget_beside(Path(dump.name)) == folder / BUDGET_FILE
        (folder / BUDGET_FILE).unlink()


def test_a_report_without_one_says_what_the_dump_alone_tells(tmp_path: Path) -> None:
    text, _ = report(made.write(tmp_path / "dump.parquet", made.rows([7] * 40)), tmp_path)
    assert "The dump alone tells no parts" in text
    assert "older weights make up 75 % of it" in by_ages({"k3": 0.04, "age_0/k3": 0.01, "age_1/k3": 0.07})
    for fresh in (0.04, 0.05):
        assert "older weights make up nothing of it" in by_ages({"k3": 0.04, "age_0/k3": fresh, "age_1/k3": 0.03})
    assert "older weights make up nothing of it" in by_ages({"k3": 0.0, "age_0/k3": 0.0, "age_1/k3": 0.0})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read"),
        ("{", "is no JSON"),
        ("[]", "is no drift budget of version 1"),
        ('{"megarl_drift_budget": 2}', "is no drift budget of version 1"),
        ('{"megarl_drift_budget": 1, "total": 3}', "is damaged"),
        ('{"megarl_drift_budget": 1, "total": {"name": "x"}}', "is damaged"),
    ],
)
def test_a_file_that_is_none_is_refused_in_a_sentence(tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / "file.json").write_text(text)
    with pytest.raises(DumpError, match=complaint):
        read_budget(tmp_path / "file.json")


def _told(**total: object) -> dict[str, object]:
    part = {"name": "x", "switched": "y", "tokens": 3, "abs_mean": 0.1, "abs_mean_error": None, "k3": 0.1}
    whole = {**part, "k3_error": 1e300, **total}
    return {"megarl_drift_budget": 1, "total": whole, "parts": [whole], "floors": [], "absent": []}


@pytest.mark.parametrize(
    "total",
    [
        *({"tokens": tokens} for tokens in (math.inf, math.nan, -5, 0, 1.5, "12", True, 10**400)),
        *({"k3": size} for size in (math.inf, -1.0, 10**400, "0.1", True, [1])),
        *({"name": name} for name in (None, ["a"], "\x1b[31mred", "half a pair \ud800", "two\nlines")),
    ],
)
def test_values_of_another_kind_are_refused_by_name(tmp_path: Path, total: dict[str, object]) -> None:
    (tmp_path / "file.json").write_text(json.dumps(_told(**total)))
    with pytest.raises(DumpError, match=rf"is damaged \({next(iter(total))} is .*; write it again"):
        read_budget(tmp_path / "file.json")


@pytest.mark.parametrize("name", ["parts", "floors", "absent"])
@pytest.mark.parametrize("value", [None, "abc", {"a": 1}, [3]])
def test_lists_of_another_kind_are_refused(tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / "file.json").write_text(json.dumps({**_told(), name: value}))
    with pytest.raises(DumpError, match="is damaged"):
        read_budget(tmp_path / "file.json")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"megarl_drift_budget": 1, "total": ' + "[" * 100_000])
def test_a_file_that_nests_without_end_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(DumpError, match="is no JSON"):
        read_budget(tmp_path / "file.json")


def test_sizes_beyond_fp64_are_written_as_not_known(tmp_path: Path) -> None:
    write_budget(tmp_path / "budget.json", replace(BUDGET, total=replace(BUDGET.total, k3=math.inf)))
    assert "Infinity" not in (tmp_path / "budget.json").read_text()
    assert math.isnan(read_budget(tmp_path / "budget.json").total.k3)


def test_large_errors_and_names_like_markup_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file.json").write_text(json.dumps(_told(name="[/b] [red]")))
    show(read_budget(tmp_path / "file.json"))
    assert capsys.readouterr().out.count("[/b] [red]") == 4
