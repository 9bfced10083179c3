"""Weights from the trainer to the engines."""
