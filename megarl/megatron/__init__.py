"""The trainer on Megatron-core. Importing this package installs the platform, before megatron.core is imported."""

from megarl.megatron.quiet import quiet
from megarl.platform.platform import install

quiet()
install()
