"""Recipe sections for what a run leaves behind."""

from dataclasses import dataclass
from typing import Optional

from megarl.config.fields import LONGEST_S, key


@dataclass
class CheckpointConfig:
    """When training state is saved and how much of it is kept."""

    every: int = key(20, "RL steps between checkpoints; 0 saves at the end of a phase and on a stop only.", low=0)
    sft_every: int = key(0, "SFT steps between checkpoints; 0 saves at the end of the phase and on a stop only.", low=0)
    stop_grace_s: float = key(
        6.0,
        "Seconds after a stop signal in which a step and its save must end; then the process ends unsaved.",
        above=0,
        high=LONGEST_S,
    )
    keep: int = key(2, "Newest checkpoints that are kept; older ones are deleted, but for what follows.", low=1)
    keep_every: int = key(0, "Checkpoints of RL steps that this divides are kept too; 0 for none.", low=0)
    keep_best: int = key(0, "So many checkpoints with the best `best_metric` are kept too.", low=0)
    best_metric: str = key("reward/mean", "Metric of the step before a save that keep_best goes by.")
    best_mode: str = key("max", "Whether the largest or the smallest best_metric is the best.", choices=("max", "min"))
    background: bool = key(
        False,
        "Writes checkpoints while training goes on, from a copy of the state on the host; one at a time. The files are "
        "the same.",
    )
    hf: bool = key(False, "Puts the policy into each checkpoint in Hugging Face layout too, as its folder `hf`.")


@dataclass
class ObserveConfig:
    """Metrics and samples. `metrics.jsonl` and TensorBoard are always written."""

    wandb_project: Optional[str] = key(None, "Weights & Biases project; null leaves it out.")
    samples_per_step: int = key(4, "Rollouts a step written to samples.jsonl.", low=0)
    dump_every: int = key(0, "RL steps between dumps of all rollouts, as parquet under dumps/; 0 writes none.", low=0)
    dump_keep: int = key(10, "Dumps kept; older ones are deleted. 0 keeps all.", low=0)
