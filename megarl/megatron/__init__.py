"""The trainer on Megatron-core. Importing this package installs the platform, before megatron.core is imported."""

from megarl.platform.platform import install

install()
