"""Modules that Megatron takes through its ModuleSpec where Transformer Engine is absent."""

from megarl.platform.platform import install

# The modules here import megatron.core, which must find torch prepared.
install()
