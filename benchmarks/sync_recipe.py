"""What benchmarks/sync.py and benchmarks/sync_live.py share: the model, its recipe, and the least of some times."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megarl.config.engine import EngineConfig, SyncConfig
from megarl.config.model import ModelConfig, ParallelConfig
from megarl.config.precision import PrecisionConfig
from megarl.config.rollout import RolloutConfig
from megarl.config.schema import Recipe

REPEATS = 7
SGLANG = os.environ.get("MEGARL_SGLANG_PYTHON", "")
"""The interpreter of SGLang's environment; empty where it is not measured."""
VOCAB = 16384
MODEL = ModelConfig(
    family="qwen2",
    num_layers=16,
    hidden_size=768,
    ffn_hidden_size=2048,
    num_attention_heads=12,
    num_query_groups=12,
    head_dim=64,
    max_position_embeddings=512,
    tie_embeddings=True,
)
"""About 125 million parameters: 500 MB in fp32."""
TRANSPORTS = ("shared_memory", "disk", "broadcast")
WAYS = [(transport, verify) for transport in TRANSPORTS for verify in ("sampled", "always")]


def recipe_of(folder: Path, dtype: str = "fp32", engine: str = "vllm", **sync: Any) -> Recipe:
    """The benchmark's recipe, with these keys of the section sync."""
    return Recipe(
        model=MODEL,
        parallel=ParallelConfig(timeout_s=600),
        precision=PrecisionConfig(dtype=dtype),
        rollout=RolloutConfig(engine=engine, temperature=1.0),
        engine=EngineConfig(kv_cache_gib=0.5, python=SGLANG if engine == "sglang" else None),
        sync=SyncConfig(bucket_mib=128, **sync),
        output_dir=str(folder),
    )


def least(action: Callable[[], float | None], repeats: int = REPEATS) -> float:
    """Seconds: what the action returns, or took."""
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        returned = action()
        took.append(time.perf_counter() - began if returned is None else returned)
    return min(took)


def named(transport: str, verify: str) -> str:
    """A way, as tables name it."""
    return f"{transport}{', every digest' * (verify == 'always')}"
