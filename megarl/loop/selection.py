"""What an update knows of its tokens' covariance, formed once on the whole update batch, the same on every rank."""

from dataclasses import replace

from megarl.loop.run import Run
from megarl.megatron.batch import TrainBatch
from megarl.objectives import Selects
from megarl.objectives.covariance import named_generator, token_covariance


def with_selection(run: Run, part: TrainBatch, update: int) -> tuple[TrainBatch, dict[str, float]]:
    """The update batch with the tokens that the objective selects, where it does, and the covariance's metrics.

    Tokens that a correction has dropped already have no policy loss: they count in no mean and are not selected.

    Args:
        run: has the objective; its seed and step, with `update`, name the generator, so a resumed run draws the same.
        part: the whole update batch.
        update: which of the step's updates it is, from 0.

    Returns:
        The batch, and covariance/mean and covariance/max in nats; covariance/selected_mean where tokens were selected.
        No metrics where no token is trained.
    """
    assert part.advantages_BT is not None and part.old_log_probs_BT is not None
    trained_BT = part.mask_BT if part.correction_keep_BT is None else part.mask_BT & part.correction_keep_BT
    covariance_BT = token_covariance(part.old_log_probs_BT, part.advantages_BT, trained_BT)
    metrics = {}
    if trained_BT.any():
        covariance_N = covariance_BT[trained_BT]
        metrics = {"covariance/mean": covariance_N.mean().item(), "covariance/max": covariance_N.max().item()}
    if "selected_BT" in run.objective.needs:
        assert isinstance(run.objective, Selects)
        generator = named_generator(f"{run.recipe.seed}/selection/{run.state.step}/{update}")
        selected_BT = run.objective.select(covariance_BT, trained_BT, generator)
        if selected_BT.any():
            metrics["covariance/selected_mean"] = covariance_BT[selected_BT].mean().item()
        part = replace(part, selected_BT=selected_BT)
    return part, metrics
