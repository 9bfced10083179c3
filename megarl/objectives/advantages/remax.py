"""ReMax (Li et al. 2023, 2310.10505): the baseline is the reward of the greedy response to the same prompt."""

from torch import Tensor

from megarl.objectives.advantages.inputs import Rewarded


def remax(batch: Rewarded) -> Tensor:
    """R - R(greedy). A group of one is as good as any: the baseline is not the group's.

    Raises:
        ValueError: the greedy responses' rewards are missing.
    """
    if batch.baselines_B is None:
        raise ValueError("remax needs baselines_B, the rewards of the greedy responses")
    return batch.on_tokens(batch.penalised_rewards() - batch.baselines_B.double())
