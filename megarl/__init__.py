"""Reinforcement learning for Megatron-core."""

__version__ = "0.1.0"
