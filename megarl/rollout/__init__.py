"""Rollout engines behind one interface. Usable without the trainer."""

from megarl.rollout.engine import Engine, WeightsError
from megarl.rollout.types import Completion, Request, SamplingParams, VersionSpan

__all__ = ["Completion", "Engine", "Request", "SamplingParams", "VersionSpan", "WeightsError"]
