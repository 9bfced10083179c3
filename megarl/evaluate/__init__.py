"""Evaluation mathematics."""
