"""The cause of a drift: tensors and models in, findings out."""

from megarl.drift.diagnosis.alone import diagnose_alone
from megarl.drift.diagnosis.computation import Computation
from megarl.drift.diagnosis.diagnose import diagnose
from megarl.drift.diagnosis.finding import Alone, Diagnosis, Finding, Floor
from megarl.drift.diagnosis.reported import Reported
from megarl.drift.diagnosis.rollouts import Rollouts, Sampling
from megarl.drift.diagnosis.side import EngineSide, Model, Traits

__all__ = [
    "Alone",
    "Computation",
    "Diagnosis",
    "EngineSide",
    "Finding",
    "Floor",
    "Model",
    "Reported",
    "Rollouts",
    "Sampling",
    "Traits",
    "diagnose",
    "diagnose_alone",
]
