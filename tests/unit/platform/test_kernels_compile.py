"""The kernels compile for GPUs, which needs none: the interpreter takes Python that the compiler refuses."""

from typing import Any

import pytest

from tests.triton_here import compiles_kernels

pytestmark = compiles_kernels

STATISTICS = {
    "targets": "*i64", "statistics": "*fp32", "stride": "i64", "scale": "fp32", "start": "i32", "valid": "i32",
}  # fmt: skip
GRADIENT = {
    "targets": "*i64", "log_zs": "*fp32", "entropies": "*fp32", "by_log_probs": "*fp32", "stride": "i32",
    "out_stride": "i64", "width": "i32", "scale": "fp32", "start": "i32", "valid": "i32",
}  # fmt: skip


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, object], capability: int) -> str:
    """PTX, after ptxas made machine code of it; arguments without a type are None."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    constants = {name: constants.get(name) for name, kind in signature.items() if kind == "constexpr"}
    built = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": 8},
    )
    assert len(built.asm["cubin"]) > 0
    return str(built.asm["ptx"])


@pytest.mark.parametrize("support", [True, False])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_both_kernels(capability: int, dtype: str, support: bool) -> None:
    from megarl.platform.cuda import softmax

    constants = {"HAS_FLOOR": support, "HAS_ENTROPY": support, "BLOCK": softmax.BLOCK}
    floors = {"floors": "*fp32", "by_entropies": "*fp32"} if support else {}
    compiled(softmax._statistics, STATISTICS | floors | {"logits": f"*{dtype}"}, constants, capability)
    types = GRADIENT | floors | {"logits": f"*{dtype}", "out": f"*{dtype}"}
    ptx = compiled(softmax._gradient, types, constants, capability)
    if dtype != "fp32":
        # to the nearest; the interpreter cuts off
        assert f"cvt.rn.{dtype.replace('fp', 'f')}" in ptx
