"""Settings of sampling as options of a command."""

import math

from megarl.config.errors import UserError


def check_sampling(temperature: float | None, top_p: float | None, top_k: int | None, *, prefix: str = "--") -> None:
    """Refuses what no token can be sampled by; None stands for an option that is not given.

    Args:
        temperature: of the softmax.
        top_p: mass that is left.
        top_k: tokens that are left.
        prefix: of the options' names.

    Raises:
        UserError: one is out of its range.
    """
    if temperature is not None and not 0 < temperature < math.inf:
        raise UserError(f"{prefix}temperature={temperature} is not above 0 and finite; give a number such as 1.0.")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"{prefix}top-p={top_p} is not above 0 and up to 1; give 1 for the whole vocabulary.")
    if top_k is not None and top_k < 0:
        raise UserError(f"{prefix}top-k={top_k} is below 0; give 0 for the whole vocabulary.")
