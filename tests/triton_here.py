"""What Triton can do here without a GPU: interpret kernels on the CPU, or compile them for a GPU that is not there.

Triton decides between the two by the environment as it is imported, so for a whole process.
"""

import importlib.util
import os

import pytest

_INSTALLED = importlib.util.find_spec("triton") is not None
_INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"

interprets_kernels = pytest.mark.skipif(
    not (_INSTALLED and _INTERPRETS),
    reason="triton's interpreter is off or not installed here; make test-megatron-0.19 runs this with it",
)
compiles_kernels = pytest.mark.skipif(
    _INTERPRETS or not _INSTALLED,
    reason="triton interprets or is not installed here; make test-megatron-0.19 runs this with its compiler",
)
