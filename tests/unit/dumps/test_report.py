"""The report: what it says, and that its page is safe to open."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from megarl.cli import main
from megarl.dumps.importers.row import NULL
from megarl.dumps.report.heat import visible
from tests.unit.dumps.made import rows, write, write_jsonl
from tests.unit.dumps.test_importers import verl

HOSTILE = ["<script>alert(1)</script>", "&amp;", '"><img src=x onerror=y>', "\u202eabc", "\n", "\x00", "é"]


def report(path: Path, folder: Path, *more: str) -> tuple[str, dict]:
    """The page and the numbers of a dump's report."""
    html, numbers = folder / "out.html", folder / "out.json"
    assert main(["drift", "report", str(path), "--html", str(html), "--json", str(numbers), *more]) == 0
    return html.read_text("utf-8"), json.loads(numbers.read_text())


class Page(HTMLParser):
    """What a page asks a browser for, and which elements it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        assert not [name for name, _ in attributes if name.startswith("on")]
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "action")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    columns = rows([7] * 40, drift=0.5)
    columns["prompt"] = HOSTILE[:1] * 40
    columns["problem_id"] = HOSTILE[2:3] * 40
    text, _ = report(write(tmp_path / "<b>.parquet", columns, pieces=dict(enumerate(HOSTILE, start=3))), tmp_path)
    page = Page(text)
    assert "script" not in page.tags and page.tags.count("img") == 6
    assert all(address.startswith("data:") for address in page.addresses)
    assert "default-src 'none'" in text
    assert "url(" not in text and "@import" not in text
    assert not {"\u202e", "\x00"} & set(text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_the_pictures_are_svg_that_refers_to_nothing_outside(tmp_path: Path) -> None:
    import base64

    text, _ = report(write(tmp_path / "a.parquet", rows([7] * 40)), tmp_path)
    for data in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text):
        for element in ElementTree.fromstring(base64.b64decode(data)).iter():
            for name, value in element.attrib.items():
                if name.endswith("href"):
                    assert value.startswith(("#", "data:"))


DRIFTS = {
    0.0: "No drift",
    1e-6: "Small drift",
    0.05: "Moderate drift",
    1.0: "Severe drift",
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_the_verdict_follows_the_drift(tmp_path: Path, drift: float) -> None:
    text, told = report(write(tmp_path / "a.parquet", rows([20] * 60, drift=drift)), tmp_path)
    assert DRIFTS[drift] in text
    assert "drift.correction=auto picks" in text
    assert told["verdict"]["level"] == DRIFTS[drift].split()[0].lower().replace("no", "none")


def test_a_small_dump_is_told_from_a_large_one(tmp_path: Path) -> None:
    for lengths, rough in (([1], "These are the numbers of 1 token alone"), ([20] * 50, None)):
        _, told = report(write(tmp_path / "a.parquet", rows(lengths)), tmp_path)
        reasons = " ".join(told["verdict"]["reasons"])
        assert ("one in a thousand" in reasons) == (rough is None)
        assert rough is None or rough in reasons


def test_drift_that_grows_is_said(tmp_path: Path) -> None:
    columns = rows([100] * 40, drift=0.001)
    for old in columns["old_log_probs"]:
        old[64:] -= 0.01 * np.arange(36)
    _, told = report(write(tmp_path / "a.parquet", columns), tmp_path)
    [grows] = [sentence for sentence in told["verdict"]["reasons"] if sentence.startswith("Drift grows")]
    assert grows.endswith("from token 64 on.")


def test_servers_and_ages_are_told_apart(tmp_path: Path) -> None:
    columns = rows([4] * 40, step=3)
    for row in range(40):
        columns["versions"][row] = [{"version": 1 + row % 2, "start": 0, "end": 4, "replica": row // 20}]
        columns["old_log_probs"][row] = columns["rollout_log_probs"][row] - (0.5 if row % 2 == 0 else 0.0)
    text, told = report(write(tmp_path / "a.parquet", columns, step=3), tmp_path)
    assert told["numbers"]["age_1/abs_mean"] == pytest.approx(0.5, abs=1e-6)
    assert told["numbers"]["age_0/abs_mean"] == 0
    assert told["numbers"]["replica_0/tokens"] == told["numbers"]["replica_1/tokens"] == 80
    assert "weights 1 updates old" in text and "server 1" in text


def test_tokens_without_log_probs_are_counted_and_shown(tmp_path: Path) -> None:
    columns = rows([7] * 40)
    columns["rollout_log_probs"][5] = [None, *columns["rollout_log_probs"][5][1:]]
    columns["old_log_probs"][5][3] -= 9
    text, told = report(write(tmp_path / "a.parquet", columns), tmp_path)
    assert told["numbers"]["tokens_without_log_prob"] == 1
    assert "1 of 280 tokens have no finite log-prob" in text
    assert 'class="out"' in text


def test_few_responses_of_another_trainer(tmp_path: Path) -> None:
    """One response of three tokens has a report: no k-hat, ids in place of texts, its text beside them."""
    text, told = report(write_jsonl(tmp_path / "a.jsonl", [verl()]), tmp_path)
    assert "pareto_k" not in told["numbers"]
    assert "[5]" in text and "Response: 2" in text
    assert NULL not in told["numbers"].values()


@pytest.mark.parametrize("wide", (1e-12, 40.0, 800.0))
def test_any_size_of_drift_is_drawn(tmp_path: Path, wide: float) -> None:
    columns = rows([7] * 40, drift=0.0)
    columns["old_log_probs"][3][2] -= wide
    columns["rollout_log_probs"][4][2] -= wide
    _, told = report(write(tmp_path / "a.parquet", columns), tmp_path)
    # fp32 in the file
    assert told["numbers"]["abs_max"] == pytest.approx(wide, abs=1e-4)


def test_texts_of_a_given_tokenizer(tmp_path: Path) -> None:
    from megarl.config.model import TokenizerConfig
    from megarl.data.fingerprint import vocabulary_fingerprint
    from megarl.data.tokenizer import build_tokenizer, save_tokenizer

    tokenizer = build_tokenizer(TokenizerConfig())
    save_tokenizer(tokenizer, tmp_path / "tokenizer")
    option = ("--tokenizer", str(tmp_path / "tokenizer"))
    own = write(tmp_path / "a.parquet", rows([7] * 40), tokenizer=vocabulary_fingerprint(tokenizer))
    text, _ = report(own, tmp_path, *option)
    assert f">{tokenizer.decode([4])}</span>" in text and "[4]" not in text
    for path, words in (
        (write(tmp_path / "b.parquet", rows()), "was made with another tokenizer than --tokenizer="),
        (write_jsonl(tmp_path / "c.jsonl", [{**verl(), "responses": [5, 999, 6]}]), "has the token id 999"),
    ):
        assert_refused(path, words, *option)


def assert_refused(path: Path, words: str, *more: str) -> None:
    """Exit code 2, one sentence on stderr, no page."""
    import contextlib
    import io

    html, said = path.with_suffix(".html"), io.StringIO()
    with contextlib.redirect_stderr(said):
        assert main(["drift", "report", str(path), "--html", str(html), *more]) == 2
    message = said.getvalue()
    assert message.startswith("megarl: error: ") and message.count("\n") == 1 and words in message
    assert not html.exists()


def test_bad_dumps_have_exit_code_2(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows())
    path.write_bytes(path.read_bytes()[:-100])
    assert_refused(path, "is no whole parquet file")
    columns = rows()
    columns["old_log_probs"][0][0] = np.nan
    assert_refused(write(tmp_path / "b.parquet", columns), "1 NaN among its old_log_probs")
    assert_refused(tmp_path / "c.parquet", "does not exist")
    assert_refused(write(tmp_path / "d.parquet", rows([])), "holds no response")
    assert_refused(write(tmp_path / "e.parquet", rows([0, 0])), "has no token with a finite log-prob")


def test_a_page_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.parquet", rows())
    assert main(["drift", "report", str(path), "--html", str(tmp_path / "no" / "a.html")]) == 2
    assert "/no, which is no folder; make it, or name another file." in capsys.readouterr().err


def test_what_does_not_show_is_shown() -> None:
    assert visible("a\n\tb\u202e\u2028\x07 é") == "a⏎⇥b\\u202e\\u2028\\u0007 é"
