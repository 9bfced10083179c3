"""Recipe section for what a run does when something goes wrong in it."""

from dataclasses import dataclass
from typing import Optional

from megarl.config.fields import LONGEST_S, key


@dataclass
class FaultsConfig:
    """When a run that hangs or diverges is ended."""

    phase_timeout_s: Optional[float] = key(
        3600.0,
        "Seconds that one phase (a rollout, rewards, log-probs, an update, a sync, a save) may take; then every rank "
        "writes its stacks to `stacks/` in `output_dir` and the job ends with exit code 124. null for no limit.",
        above=0,
        high=LONGEST_S,
    )
    nonfinite_updates: int = key(
        3,
        "Updates in a row whose loss or gradient is not finite after which the run stops; each of them is skipped.",
        low=1,
    )
