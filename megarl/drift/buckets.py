"""Drift by a token's place in its response, and by how likely the engine thought it."""

import torch

from megarl.config.drift_names import POSITION_STARTS, POSITIONS, PROBABILITIES, PROBABILITY_EDGES
from megarl.drift.groups import Grouping
from megarl.drift.log_ratios import LogRatios, Measures


def position_measures(ratios: LogRatios, grouping: Grouping) -> Measures:
    """`GROUP_MEASURES` of the tokens of each range of positions, counted from 0 at a response's first token."""
    starts = torch.tensor(POSITION_STARTS[1:], device=ratios.position_N.device)
    return grouping.measures(POSITIONS, torch.bucketize(ratios.position_N, starts, right=True))


def probability_measures(ratios: LogRatios, grouping: Grouping) -> Measures:
    """`GROUP_MEASURES` of the tokens of each range of the engine's probability, lower ends included."""
    edges = torch.tensor(PROBABILITY_EDGES, dtype=torch.float64, device=ratios.rollout_N.device)
    return grouping.measures(PROBABILITIES, torch.bucketize(ratios.rollout_N, edges.log(), right=True))
