"""What a report on a large dump costs: seconds of a CPU, and memory at the peak.

    python benchmarks/report.py        # from the repository's root, half a minute; writes benchmarks/report.json

Each dump has 2 million tokens: of responses of like length, of few long ones, and of many short ones with a long one
among every 256, which are read together. Ids are of a vocabulary of 151,936, each with its text in the file. One
process a report, which the kernel accounts for; a busy machine lengthens `seconds` and leaves `cpu_seconds`.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from megarl.dumps.schema import SCHEMA, Header, file_metadata

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks/report.json"
VOCABULARY = 151_936
MANY_SHORT = ([32_768] + [358] * 255) * 16
DUMPS = {"alike": [2000] * 1000, "long": [20_000] * 100, "ragged": MANY_SHORT}
"""Name -> lengths of the responses, tokens."""


def write_dump(path: Path, lengths: list[int]) -> None:
    """A dump with made-up log-probs: Delta is normal with a standard deviation of 0.01 nats."""
    generator = np.random.Generator(np.random.PCG64(0))
    rows = len(lengths)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    tokens = sum(lengths)
    rollout_N = -3 * generator.random(tokens)
    trainer_N = rollout_N + 0.01 * generator.standard_normal(tokens)

    def lists(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, pa.array(values, kind))

    columns = {
        "step": np.ones(rows),
        "problem_id": [f"p{row // 8}" for row in range(rows)],
        "sample": np.arange(rows) % 8,
        "prompt": ["a problem of some words " * 20] * rows,
        "response": ["word " * length for length in lengths],
        "prompt_ids": [list(range(100))] * rows,
        "response_ids": lists(generator.integers(VOCABULARY, size=tokens), pa.int32()),
        "trained": lists(np.ones(tokens, dtype=bool), pa.bool_()),
        "old_log_probs": lists(trainer_N, pa.float32()),
        "rollout_log_probs": lists(rollout_N, pa.float32()),
        "reference_log_probs": [None] * rows,
        "advantages": lists(np.ones(tokens), pa.float32()),
        "versions": [[{"version": 0, "start": 0, "end": n, "replica": row % 4}] for row, n in enumerate(lengths)],
        "finish_reason": ["stop"] * rows,
        "reward": generator.integers(2, size=rows),
        "task_reward": np.zeros(rows),
        "temperature": np.ones(rows),
        "top_p": np.ones(rows),
        "top_k": np.zeros(rows),
        "max_new_tokens": [max(lengths)] * rows,
        "stop_token_id": np.ones(rows),
    }
    arrays = [_array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names]
    header = Header("made", 1, "0" * 64, None, "vllm", "bf16", version("megarl"))
    pieces = {token: f" piece{token}" for token in range(VOCABULARY)}
    schema = SCHEMA.with_metadata(file_metadata(header, pieces))
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    return pa.array(values).cast(kind) if isinstance(values, np.ndarray) else pa.array(values, kind)


def report_on(dump: Path) -> dict[str, float]:
    """Time and memory of `megarl drift report`."""
    command = [sys.executable, "-m", "megarl", "drift", "report", str(dump), "--html", str(dump.with_suffix(".html"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}"
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        # ru_maxrss is in KiB
        "peak_gb": round(usage.ru_maxrss * 1024 / 1e9, 3),
        "page_kb": round(dump.with_suffix(".html").stat().st_size / 1e3),
    }


def main() -> None:
    """Measures, prints and writes the results."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, lengths in DUMPS.items():
            dump = Path(folder, f"{name}.parquet")
            write_dump(dump, lengths)
            size = {"responses": len(lengths), "tokens": sum(lengths), "dump_mb": round(dump.stat().st_size / 1e6, 1)}
            results[name] = {**size, **report_on(dump)}
            dump.unlink()
    machine = {
        "cpus": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load_average": os.getloadavg(),
    }
    text = json.dumps({"command": "python benchmarks/report.py", "machine": machine, "results": results}, indent=2)
    RESULTS.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
