"""Dumps of other trainers, as far as they hold token ids and both sides' log-probs."""

from megarl.dumps.importers.prime_rl import PRIME_RL
from megarl.dumps.importers.row import RowFormat
from megarl.dumps.importers.trl import TRL
from megarl.dumps.importers.verl import VERL

ROW_FORMATS: tuple[RowFormat, ...] = (PRIME_RL, VERL, TRL)
"""In the order in which they are tried: the first whose marks a file's first row has."""

__all__ = ["ROW_FORMATS", "RowFormat"]
