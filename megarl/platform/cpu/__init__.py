"""Runs the stock megatron-core on a torch without CUDA, by patching torch and not Megatron.

Megatron-core has no device abstraction: it writes `torch.cuda.current_device()`, `device="cuda"` and `tensor.cuda()`
at some 150 places, which move with each release. The seam that stays is torch itself. One file holds one concern.
Only what raises, or does the wrong thing, on a build without CUDA is replaced; `torch.cuda.is_available()` stays
False, so that torch.distributed, transformers and Megatron's own checks take their CPU branches.
"""
