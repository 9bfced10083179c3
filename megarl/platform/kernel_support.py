"""Whether this machine has what the kernels on a GPU need."""

from megarl.config.errors import UserError
from megarl.platform.platform import has_triton


def check_kernels() -> None:
    """To be called where there is a GPU.

    Raises:
        UserError: Triton is not installed.
    """
    if not has_triton():
        raise UserError(
            "On a GPU log-probs are formed by Triton kernels, and triton is not installed; install the version that "
            "torch's own requirements name (pip install triton==VERSION), or hide the GPU with CUDA_VISIBLE_DEVICES=."
        )
