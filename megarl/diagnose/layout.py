"""Rollouts as a model reads them: which tokens, at which positions, seeing what, and where each token is predicted."""

from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.drift.diagnosis.computation import Computation
from megarl.drift.diagnosis.rollouts import Rollouts

_PAD = 0
_DECIDE = ("padding", "packed", "restarts", "causal", "window", "drop", "prepend")
"""What of a computation decides where tokens lie and what they see."""


@dataclass(frozen=True)
class LaidOut:
    """R rows of S places.

    Attributes:
        ids_RS: int64, the tokens read.
        positions_RS: int64, for the rotary embedding.
        sees_RSS: bool, which places (last dimension) a place sees; itself always.
        rows_M: the row of each of the M tokens of prompts and responses, sequence by sequence.
        columns_M: its column.
        response_M: bool, whether the next token is a response's.
        within_M: its number in its own sequence, counted from what is put before the prompt.
        prompts_M: the length of its prompt, with what is put before it.
    """

    ids_RS: Tensor
    positions_RS: Tensor
    sees_RSS: Tensor
    rows_M: Tensor
    columns_M: Tensor
    response_M: Tensor
    within_M: Tensor
    prompts_M: Tensor

    @property
    def steps_RS(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """int64: which places an engine that answers all prompts together reads at once: 0 for prompts and padding."""
        steps_RS = torch.zeros_like(self.ids_RS)
        steps_RS[self.rows_M, self.columns_M] = (self.within_M - self.prompts_M + 1).clamp(min=0)
        return steps_RS


class Layouts:
    """Keeps the last one: most experiments of a tree change what is computed and not where it lies."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._last: tuple[Rollouts, Computation, LaidOut] | None = None

    def of(self, rollouts: Rollouts, computation: Computation) -> LaidOut:
        """See `lay_out`."""
        # the rest at its default: what is not named above cannot be read and forgotten
        wanted = Computation(**{name: getattr(computation, name) for name in _DECIDE})
        if self._last is None or self._last[0] is not rollouts or self._last[1] != wanted:
            self._last = (rollouts, wanted, lay_out(rollouts, wanted))
        return self._last[2]


def lay_out(rollouts: Rollouts, computation: Computation) -> LaidOut:
    """As the computation says."""
    longest = int(rollouts.prompt_lengths_B.max())
    opener = list(computation.prepend)
    rows: list[list[tuple[int, int, int]]] = []
    """Of each row, the places: token, position, and the number of the sequence, -1 for hidden padding."""
    found: list[tuple[int, int, bool, int, int]] = []
    """Of each token: row, column, whether it predicts a response's token, its number in its sequence, its prompt."""
    for number in range(len(rollouts.ids_BT)):
        prompt, end = int(rollouts.prompt_lengths_B[number]), int(rollouts.lengths_B[number])
        ids = rollouts.ids_BT[number, :end].tolist()
        head = opener + ids[computation.drop : prompt]
        response = ids[prompt:]
        pads = longest - prompt if computation.padding != "none" else 0
        row = number // computation.packed
        if row == len(rows):
            rows.append([])
        places = rows[row]
        begin = 0 if computation.restarts else len(places)
        attended = [(_PAD, begin + place, number) for place in range(pads)] if computation.padding == "attended" else []
        places += attended
        begin += len(attended)
        for place, token in enumerate(head):
            found.append((row, len(places), place == len(head) - 1 and bool(response), place, len(head)))
            places.append((token, begin + place, number))
        if computation.padding == "gap":
            places += [(_PAD, begin + len(head) + place, -1) for place in range(pads)]
            begin += pads
        for place, token in enumerate(response):
            own = len(head) + place
            found.append((row, len(places), place < len(response) - 1, own, len(head)))
            places.append((token, begin + own, number))
    return _as_tensors(rows, found, computation)


def _as_tensors(
    rows: list[list[tuple[int, int, int]]], found: list[tuple[int, int, bool, int, int]], computation: Computation
) -> LaidOut:
    width = max(len(row) for row in rows)
    padded = torch.tensor([row + [(_PAD, 0, -1)] * (width - len(row)) for row in rows])
    ids_RS, positions_RS, numbers_RS = padded.unbind(dim=2)
    # a packed row's sequences see each other: that is the fault it stands for
    read_RS = numbers_RS >= 0
    order_S = torch.arange(width)
    behind_SS = order_S[:, None] >= order_S[None, :]
    sees_RSS = read_RS[:, None, :] & (behind_SS if computation.causal else torch.ones_like(behind_SS))
    if computation.window is not None:
        sees_RSS = sees_RSS & (order_S[:, None] - order_S[None, :] < computation.window)
    sees_RSS = sees_RSS | torch.eye(width, dtype=torch.bool)
    rows_M, columns_M, response_M, within_M, prompts_M = torch.tensor(found).unbind(dim=1)
    return LaidOut(
        ids_RS.contiguous(), positions_RS, sees_RSS, rows_M, columns_M, response_M.bool(), within_M, prompts_M
    )
