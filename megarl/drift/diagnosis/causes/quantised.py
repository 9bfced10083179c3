"""A side rounds the operands of its linear layers to 8 bits."""

from collections.abc import Iterator
from dataclasses import dataclass

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation, Dtype, Operands


@dataclass(frozen=True)
class Quantised:
    """One number format, with each kind of scale that it comes with.

    Attributes:
        name: see `Cause`.
        numbers: the format.
        scales: what each kind has a scale for.
    """

    name: str
    numbers: str
    scales: dict[Operands, str]

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        # engines start from 16 bits, whatever the trainer computes in; emulation in the trainer, from its own dtype
        dtypes: tuple[Dtype | None, ...] = (None, "bf16") if case.bench.model.traits.dtype == "fp32" else (None,)
        for dtype in dtypes:
            for kind in self.scales:
                yield Hypothesis(Computation(dtype, operands=kind), case.bench.rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        kind, dtype = best.computation.operands, best.computation.dtype
        assert kind is not None
        layers = "linear layers" if dtype is None else f"linear layers in {dtype}"
        return (
            f"its log-probs are those of {layers} whose operands are rounded to {self.numbers} with a scale for each "
            f"{self.scales[kind]}",
            "quantise both sides by the same recipe (engine.quantization, precision.fp8), leave it off, or correct for "
            "it (rl.correction)",
        )


FP8 = Quantised("fp8", "E4M3", {"fp8_tensor": "tensor", "fp8_step": "tensor", "fp8_row": "row", "fp8_block": "block"})
INT8 = Quantised("int8", "8-bit integers", {"int8_row": "row"})
