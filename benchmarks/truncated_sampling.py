"""Time of the floor of truncated sampling for one chunk of logits, beside the product that gives those logits.

A chunk is what the trainer works through at once on a CPU: 128 MiB of fp32 logits, of a vocabulary of 151,936. The
wider the logits are spread, the fewer tokens top-p leaves. Time is the process's own, the least of some repeats, on
one thread.

    python benchmarks/truncated_sampling.py             # writes benchmarks/truncated_sampling.json
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

import megarl.megatron  # noqa: F401 - before megatron.core
from megarl.megatron.distribution import Distribution, Sampling, VocabularyShard
from megarl.megatron.log_probs import chunks
from megarl.megatron.support import support_floor

REPOSITORY = Path(__file__).resolve().parents[1]
VOCABULARY, HIDDEN = 151_936, 896
SAMPLINGS = {"top_k=20": Sampling(top_k=20), "top_p=0.95": Sampling(top_p=0.95)}
SPREADS = (5.0, 2.0)
"""Standard deviations of the logits."""


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The least process time of some calls."""
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found)


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "benchmarks/truncated_sampling.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    tokens = next(chunks(2**20, VOCABULARY, torch.device("cpu"))).stop
    hidden_NH, weight_VH = (torch.randn(rows, HIDDEN, generator=generator) for rows in (tokens, VOCABULARY))
    product = seconds(lambda: hidden_NH @ weight_VH.t(), arguments.repeats)
    print(f"{tokens} tokens of a vocabulary of {VOCABULARY}: the product takes {product:.2f} s")
    rows = []
    for spread in SPREADS:
        logits_NV = spread * torch.randn(tokens, VOCABULARY, generator=generator)
        for name, sampling in SAMPLINGS.items():
            distribution = Distribution(VocabularyShard(None, 0, VOCABULARY), sampling)
            floor_N = support_floor(logits_NV, distribution)
            assert floor_N is not None
            left = (logits_NV >= floor_N[:, None]).sum(1).double().mean().item()
            taken = seconds(lambda d=distribution, x=logits_NV: support_floor(x, d), arguments.repeats)  # type: ignore[misc]
            rows.append({"spread": spread, "sampling": name, "tokens_left": left, "seconds": taken})
            print(rows[-1])
    sizes = {"tokens": tokens, "vocabulary": VOCABULARY, "hidden": HIDDEN, "threads": 1, "repeats": arguments.repeats}
    held = {"sizes": sizes, "product_seconds": product, "floors": rows}
    arguments.output.write_text(json.dumps(held, indent=2) + "\n")


if __name__ == "__main__":
    main()
