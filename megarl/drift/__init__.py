"""Drift between trainer and engine: tensors in, numbers out."""

from megarl.drift.classes import TokenClass
from megarl.drift.measures import drift_metrics
from megarl.drift.pareto import pareto_k

__all__ = ["TokenClass", "drift_metrics", "pareto_k"]
