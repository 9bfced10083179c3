"""Checks of keys against each other, and against the files they name."""

from megarl.config.check_asynchrony import ASYNCHRONY_CHECKS
from megarl.config.check_correction import CORRECTION_CHECKS
from megarl.config.check_data import DATA_CHECKS
from megarl.config.check_drift import DRIFT_CHECKS
from megarl.config.check_engine import ENGINE_CHECKS
from megarl.config.check_entropy import ENTROPY_CHECKS
from megarl.config.check_model import MODEL_CHECKS
from megarl.config.check_moe import MOE_CHECKS
from megarl.config.check_objective import OBJECTIVE_CHECKS
from megarl.config.check_precision import PRECISION_CHECKS
from megarl.config.check_training import TRAINING_CHECKS
from megarl.config.check_unread import UNREAD_CHECKS
from megarl.config.schema import Recipe


def validate(recipe: Recipe) -> None:
    """Refuses a recipe whose keys contradict each other. Types and ranges are taken for granted.

    Raises:
        RecipeError: for the first contradiction found, naming the key to change.
    """
    generation = (*ENGINE_CHECKS, *ASYNCHRONY_CHECKS)
    run_and_data = (*UNREAD_CHECKS, *MODEL_CHECKS, *MOE_CHECKS, *PRECISION_CHECKS, *DATA_CHECKS, *TRAINING_CHECKS)
    policy_loss = (*OBJECTIVE_CHECKS, *CORRECTION_CHECKS, *ENTROPY_CHECKS, *DRIFT_CHECKS)
    for check in (*run_and_data, *generation, *policy_loss):
        check(recipe)
