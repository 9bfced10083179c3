"""How many of the trainer's processes share this machine: by what the launcher says, else all."""

import pytest

from megarl.config.model import ParallelConfig
from megarl.config.schema import Recipe
from megarl.preflight import _ranks_here

VARIABLES = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")


@pytest.mark.parametrize(
    ("told", "ranks"),
    [
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "2"}, 4),
        # srun sets no LOCAL_WORLD_SIZE
        ({"SLURM_NTASKS_PER_NODE": "2"}, 2),
        ({}, 8),
    ],
    ids=["torchrun", "srun", "megarl"],
)
def test_the_launcher_tells(told: dict[str, str], ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert _ranks_here(Recipe(parallel=ParallelConfig(world_size=8))) == ranks
