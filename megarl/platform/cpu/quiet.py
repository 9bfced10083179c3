"""Messages that are expected on a CPU and would only alarm."""

import logging
import re
import warnings

# Beginnings of the warnings that megatron.core gives at import without Transformer Engine and Apex.
EXPECTED_WARNINGS = (
    "Transformer Engine and Apex are not installed. Falling back to ",
    "Apex is not installed. Falling back to Torch Norm",
)


def _is_news(record: logging.LogRecord) -> bool:
    return "CPU RNG state changed" not in record.getMessage()


def quiet() -> None:
    """Filters the warnings about missing CUDA extensions, and one about the CPU generator.

    Megatron's random-state tracker warns whenever the CPU generator moved inside a fork. Here that generator is the
    device's, and moving it is what the fork is for.
    """
    for beginning in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=re.escape(beginning), category=UserWarning)
    logging.getLogger("megatron.core.tensor_parallel.random").addFilter(_is_news)
