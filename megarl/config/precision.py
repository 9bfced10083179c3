"""Recipe sections for the numbers that the trainer computes in."""

from dataclasses import dataclass, field

from megarl.config.fields import key


@dataclass
class LossScaleConfig:
    """Dynamic loss scaling, for precision.dtype=fp16: halved after overflows, doubled after steps without one."""

    initial: float = key(
        256.0,
        "Factor of the loss in the first step, a power of two; low, as the loss is a sum over a micro-batch's tokens.",
        low=1,
    )
    least: float = key(1.0, "Factor below which it is not halved; a step that overflows even there is an error.", low=1)
    window: int = key(1000, "Steps without an overflow after which it doubles.", low=1)
    hysteresis: int = key(2, "Overflows since it last doubled from which on each halves it.", low=1)


@dataclass
class FP8Config:
    """Products of the linear layers in 8 bits: by Transformer Engine on GPUs, or emulated."""

    recipe: str = key(
        "none",
        "How a tensor's scale is found: its own largest value (tensorwise), those of past updates (delayed), or one "
        "for each block of 128 (blockwise) or 32 (mxfp8).",
        choices=("none", "tensorwise", "delayed", "blockwise", "mxfp8"),
    )
    format: str = key("e4m3", "E4M3 for all, or hybrid: E5M2 for gradients.", choices=("e4m3", "hybrid"))
    emulation: bool = key(
        False, "Round to FP8 and compute in precision.dtype, on any machine: for numerics, at no gain in speed."
    )
    param: bool = key(False, "Keep the layers' weights in FP8 and gather them so; fp32 ones stay in the optimizer.")
    history: int = key(16, "Updates, or micro-batches of Transformer Engine, that delayed scaling looks back.", low=1)
    history_algorithm: str = key("max", "What of the history sets the scale.", choices=("max", "most_recent"))
    block_scales: str = key(
        "power_of_two",
        "Scales of recipe=blockwise: rounded down to a power of two, or any.",
        choices=("power_of_two", "fp32"),
    )

    @property
    def enabled(self) -> bool:
        """Whether any tensor is in FP8."""
        return self.recipe != "none"

    @property
    def alignment(self) -> int:
        """What both sides of every product must divide by, as Megatron-core's get_fp8_align_size has it; 1 without."""
        return {"none": 1, "mxfp8": 32}.get(self.recipe, 16)


@dataclass
class PrecisionConfig:
    """What weights, activations and gradients are held and multiplied in. The optimizer's are fp32 in every case."""

    dtype: str = key("fp32", "Of weights and activations.", choices=("fp32", "bf16", "fp16"))
    fp32_head: bool = key(
        False, "Form the output layer's product in fp32, for log-probs and gradients of 16-bit models."
    )
    fp32_residual: bool = key(False, "Keep the residual stream of a 16-bit model in fp32.")
    batch_invariant: bool = key(
        False, "Have trainer and embedded engine give the same bits for the same ids, whatever else is in the batch."
    )
    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)
    fp8: FP8Config = field(default_factory=FP8Config)
