"""Drift between trainer and engine: tensors in, numbers out."""

from megarl.drift.pareto import pareto_k
from megarl.drift.tokens import drift_metrics

__all__ = ["drift_metrics", "pareto_k"]
