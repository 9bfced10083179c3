"""The table that tools/gpu_check.sh prints."""

import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "tools" / "gpu_table.py"
REPORT = """<testsuites><testsuite>
<testcase classname="tests.gpu.test_a" name="test_b[dtype0]" time="0.5"/>
<testcase classname="tests.gpu.test_a" name="test_b[dtype1]" time="0.1"><skipped message="no CUDA device"/></testcase>
<testcase classname="tests.gpu.test_a" name="test_c" time="0.1"><failure message="a [3]&#10;and more"/></testcase>
</testsuite></testsuites>"""


def rows(report: Path) -> list[list[str]]:
    printed = subprocess.run(
        [sys.executable, str(TABLE), str(report)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return [line.split() for line in printed.splitlines() if "test_" in line]


def test_outcomes_parameters_and_reasons_are_shown(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert rows(report) == [
        ["test_a", "test_b[dtype0]", "passed", "0.5"],
        ["test_a", "test_b[dtype1]", "skipped", "0.1", "no", "CUDA", "device"],
        ["test_a", "test_c", "failure", "0.1", "a", "[3]"],
    ]
