import pytest

from megarl.config.errors import UserError
from megarl.platform.joined import RENDEZVOUS, RENDEZVOUS_HOST, Joined, joined_world

ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", **ADDRESS}
STEP = {**BATCH_SCRIPT, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "4", **ADDRESS}, Joined(1, 4)),
        ({"RANK": "1", "WORLD_SIZE": "4", RENDEZVOUS: "/tmp/x"}, Joined(1, 4)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Joined(0, 1)),
        (BATCH_SCRIPT, None),
        ({**BATCH_SCRIPT, "SLURM_STEP_NUM_TASKS": "1"}, None),
        (STEP, Joined(1, 2)),
        ({**STEP, RENDEZVOUS: "/tmp/x", RENDEZVOUS_HOST: "node1"}, Joined(1, 2)),
    ],
)
def test_worlds(environment: dict[str, str], expected: Joined | None) -> None:
    assert joined_world(environment) == expected


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT"),
        ({name: value for name, value in STEP.items() if name != "MASTER_PORT"}, "MASTER_PORT"),
        ({**STEP, RENDEZVOUS: "/tmp/x"}, RENDEZVOUS_HOST),
    ],
)
def test_what_is_missing_is_named(environment: dict[str, str], missing: str) -> None:
    with pytest.raises(UserError, match=f"The environment variable {missing} is missing"):
        joined_world(environment)
