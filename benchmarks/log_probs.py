"""Time and memory of a loss over the output layer, forward and backward, beside the plain way and other libraries'.

Each way runs in a process of its own, on the same numbers: V 151,936, 4,096 tokens, hidden 896, fp32 on the CPU unless
told otherwise. Memory is the peak beyond the inputs (hidden states and weight), gradients included. Ratios are
against the plain way of the same run.

    python benchmarks/log_probs.py                      # writes benchmarks/log_probs.json
    pip install liger-kernel trl                        # for the two rows of other libraries

The loss is GRPO's clipped surrogate, token mean, one response a row of 512 tokens.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

REPOSITORY = Path(__file__).resolve().parents[1]
WAYS = ("plain", "recomputed", "token_local", "trl", "liger")
RESPONSE = 512
CLIP = 0.2


def surrogate(log_probs_N: Tensor, old_N: Tensor, advantages_N: Tensor) -> Tensor:
    """Summed clipped surrogate."""
    ratio_N = (log_probs_N - old_N).exp()
    return -torch.minimum(ratio_N * advantages_N, ratio_N.clamp(1 - CLIP, 1 + CLIP) * advantages_N).sum()


def run(
    way: str, hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, old_N: Tensor, advantages_N: Tensor
) -> float:
    """One forward and backward pass; the token mean of the loss."""
    tokens = len(targets_N)
    if way == "plain":
        log_p_NV = (hidden_NH @ weight_VH.t()).float().log_softmax(-1)
        loss = surrogate(log_p_NV.gather(-1, targets_N[:, None])[:, 0], old_N, advantages_N) / tokens
    elif way == "trl":
        from trl.trainer.utils import selective_log_softmax

        log_probs_N = selective_log_softmax(hidden_NH @ weight_VH.t(), targets_N)
        loss = surrogate(log_probs_N, old_N, advantages_N) / tokens
    elif way == "liger":
        from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

        rows = tokens // RESPONSE
        liger = LigerFusedLinearGRPOLoss(
            beta=0.0, compiled=False, use_ref_model=False, epsilon_low=CLIP, epsilon_high=CLIP, loss_type="bnpo"
        )
        loss, _ = liger(
            hidden_NH.view(rows, RESPONSE, -1), weight_VH, targets_N.view(rows, RESPONSE),
            torch.ones(rows, RESPONSE), advantages_N.view(rows, RESPONSE)[:, 0],
            old_per_token_logps=old_N.view(rows, RESPONSE),
        )  # fmt: skip
    else:
        import megarl.megatron  # noqa: F401 - before megatron.core
        from megarl.megatron.distribution import Distribution, VocabularyShard
        from megarl.megatron.head_log_probs import head_log_probs
        from megarl.megatron.head_loss import head_loss

        distribution = Distribution(VocabularyShard(None, 0, len(weight_VH)))
        if way == "recomputed":
            log_probs_N = head_log_probs(hidden_NH, weight_VH, targets_N, distribution).log_probs_N
            loss = surrogate(log_probs_N, old_N, advantages_N) / tokens
        else:
            loss = head_loss(
                hidden_NH, weight_VH, targets_N, distribution,
                lambda log_probs, _, rows: surrogate(log_probs, old_N[rows], advantages_N[rows]),
            ) / tokens  # fmt: skip
    loss.backward()
    return loss.item()


def resident(field: str) -> int:
    """Bytes of this process in memory: now (VmRSS), or at most since the peak was reset (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def measure(way: str, tokens: int, hidden: int, vocabulary: int, repeats: int) -> dict[str, float]:
    """Seconds (the least of the repeats), bytes beyond the inputs, and the loss and gradient that it gave."""
    generator = torch.Generator().manual_seed(0)
    hidden_NH = torch.randn(tokens, hidden, generator=generator).requires_grad_()
    weight_VH = (0.05 * torch.randn(vocabulary, hidden, generator=generator)).requires_grad_()
    targets_N = torch.randint(0, vocabulary, (tokens,), generator=generator)
    old_N = -13.0 + 0.1 * torch.randn(tokens, generator=generator)
    advantages_N = torch.randn(tokens // RESPONSE, generator=generator).repeat_interleave(RESPONSE)
    # imports and the threads' buffers are nobody's memory
    run(way, hidden_NH[:RESPONSE], weight_VH[:64], targets_N[:RESPONSE] % 64, old_N[:RESPONSE], advantages_N[:RESPONSE])
    hidden_NH.grad = weight_VH.grad = None
    before = resident("VmRSS")
    # Linux forgets the peak so far
    Path("/proc/self/clear_refs").write_text("5")
    seconds = []
    for _ in range(repeats):
        hidden_NH.grad = weight_VH.grad = None
        begin = time.perf_counter()
        loss = run(way, hidden_NH, weight_VH, targets_N, old_N, advantages_N)
        seconds.append(time.perf_counter() - begin)
    peak = resident("VmHWM")
    assert hidden_NH.grad is not None and weight_VH.grad is not None
    return {
        "seconds": min(seconds),
        "bytes": float(peak - before),
        "loss": loss,
        "gradient_norm": hidden_NH.grad.double().norm().item() + weight_VH.grad.double().norm().item(),
    }


def table(results: dict[str, dict[str, float]]) -> str:
    """A Markdown table of ratios against the plain way."""
    lines = ["| way | seconds | of plain's time | peak memory, GiB | of plain's memory |", "|---|---|---|---|---|"]
    plain = results["plain"]
    for way, result in results.items():
        time_share, memory_share = result["seconds"] / plain["seconds"], result["bytes"] / plain["bytes"]
        seconds, memory = result["seconds"], result["bytes"] / 2**30
        lines.append(f"| {way} | {seconds:.1f} | {time_share:.2f} | {memory:.2f} | {memory_share:.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Measures each way and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=None)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "benchmarks/log_probs.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = {name: getattr(arguments, name) for name in ("tokens", "hidden", "vocabulary", "repeats", "threads")}
    if arguments.way:
        own = {name: size for name, size in sizes.items() if name != "threads"}
        print(json.dumps(measure(arguments.way, **own)))
        return
    needed = {"trl": "trl", "liger": "liger_kernel"}
    ways = arguments.ways or [way for way in WAYS if way not in needed or importlib.util.find_spec(needed[way])]
    results = {}
    for way in ways:
        flags = [f"--{name}={size}" for name, size in sizes.items()]
        output = subprocess.run(
            [sys.executable, __file__, f"--way={way}", *flags], stdout=subprocess.PIPE, text=True, check=True
        )
        results[way] = json.loads(output.stdout.splitlines()[-1])
        print(way, results[way], flush=True)
    for way, result in results.items():
        for name in ("loss", "gradient_norm"):
            assert abs(result[name] / results[ways[0]][name] - 1) < 1e-3, f"{way} gave another {name}"
    print(table(results))
    arguments.output.write_text(json.dumps({"sizes": sizes, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
