"""Metrics, samples, progress, summary."""
