"""The whole recipe."""

from dataclasses import dataclass, field

from megarl.config.data import DataConfig, RewardConfig
from megarl.config.drift import DriftConfig
from megarl.config.engine import EngineConfig, SyncConfig
from megarl.config.faults import FaultsConfig
from megarl.config.fields import key
from megarl.config.model import ModelConfig, ParallelConfig, TokenizerConfig
from megarl.config.output import CheckpointConfig, ObserveConfig
from megarl.config.precision import PrecisionConfig
from megarl.config.rollout import EvaluateConfig, RolloutConfig
from megarl.config.training import RLConfig, SFTConfig


@dataclass
class Recipe:
    """Everything that decides a run. What a recipe leaves out has the default given here."""

    name: str = key("run", "Name of the run.")
    seed: int = key(0, "Seed of every named random generator.", low=0, high=2**32 - 1)
    output_dir: str = key("runs/${name}", "Folder of the run: checkpoints, metrics, samples, summary.")
    resume: str = key(
        "auto",
        "'auto' continues the run in output_dir where there is one, 'must' insists on one, 'never' refuses one.",
        choices=("auto", "must", "never"),
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    data: DataConfig = field(default_factory=DataConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    drift: DriftConfig = field(default_factory=DriftConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)
