"""Rollout engines behind one interface. Usable without the trainer."""

from megarl.rollout.engine import Engine, WeightsError
from megarl.rollout.routing import RoutedExperts
from megarl.rollout.types import Completion, Request, SamplingParams, VersionSpan

__all__ = ["Completion", "Engine", "Request", "RoutedExperts", "SamplingParams", "VersionSpan", "WeightsError"]
