"""NCCL, CUDA graphs and CUDA IPC, each in processes of their own."""

import hashlib

import pytest
import torch
import torch.multiprocessing

from tests.gpu.cuda_worker import ROWS, SHAPE, negate_shared
from tests.parallel.world import run_world
from tests.unit.megatron.tiny import noisy_weights, tiny_recipe

TIMEOUT_S = 80.0
# fp32 products may be formed from TF32 parts by the libraries; 10 bits of mantissa
RELATIVE = 2**-10


@pytest.mark.parametrize("ranks", [1, 2])
def test_nccl_sums_and_the_weights_come_out_as_they_went_in(ranks: int) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs, and this process sees {torch.cuda.device_count()}")
    results = run_world("tests.gpu.cuda_worker:sums_and_export", ranks, {}, TIMEOUT_S, backend="nccl")
    read = noisy_weights(tiny_recipe(**SHAPE).model)
    for result in results:
        assert result["backend"] == "nccl"
        assert (result["total"] == sum(range(1, ranks + 1))).all()
        assert len(result["weights"]) > 10
        for name, tensor in result["weights"].items():
            assert torch.equal(tensor, read(name)), name


def test_updates_by_cuda_graphs_are_the_eager_ones() -> None:
    (result,) = run_world("tests.gpu.cuda_worker:eager_and_graphed", 1, {}, TIMEOUT_S, backend="nccl")
    assert result["created"]
    for graphed, eager in zip(result["graphed"], result["eager"], strict=True):
        assert graphed == pytest.approx(eager, rel=RELATIVE)


def test_another_process_reads_and_writes_the_same_memory() -> None:
    generator = torch.Generator().manual_seed(ROWS)
    original = torch.randn(1_000_003, generator=generator)
    shared = original.cuda()
    # an offset into an allocation, as a bucket's views have
    part = shared[17:]
    torch.cuda.synchronize()
    context = torch.multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=negate_shared, args=(part, answers))
    process.start()
    try:
        digest = answers.get(timeout=TIMEOUT_S)
        process.join(TIMEOUT_S)
        assert process.exitcode == 0
    finally:
        if process.is_alive():
            process.kill()
    assert digest == hashlib.sha256(original[17:].numpy().tobytes()).hexdigest()
    assert torch.equal(shared.cpu(), torch.cat([original[:17], -original[17:]]))
