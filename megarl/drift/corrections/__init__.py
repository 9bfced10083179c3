"""Corrections of train-inference mismatch: importance weights and rejection, tensors in, tensors out."""

from megarl.drift.corrections.corrected_objective import CorrectedObjective, correction_metrics
from megarl.drift.corrections.correction import Corrected, Correction
from megarl.drift.corrections.opsm import OPSM
from megarl.drift.corrections.rejection import (
    RejectGeometric,
    RejectK3,
    RejectSequences,
    RejectTokens,
    Rule,
    Veto,
)
from megarl.drift.corrections.weights import TIS, IcePop

__all__ = [
    "OPSM",
    "TIS",
    "Corrected",
    "Correction",
    "CorrectedObjective",
    "IcePop",
    "RejectGeometric",
    "RejectK3",
    "RejectSequences",
    "RejectTokens",
    "Rule",
    "Veto",
    "correction_metrics",
]
