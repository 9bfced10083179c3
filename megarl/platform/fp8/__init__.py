"""FP8 by rounding: Transformer Engine's recipes on torch's float8 dtypes, for any machine."""

from megarl.platform.platform import install

# The linear layers are megatron.core's, which must find torch prepared.
install()
