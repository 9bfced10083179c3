"""What shellcheck says of rendered scripts."""

from pathlib import Path

import pytest

from tests.runs import REPOSITORY
from tests.unit.submit.rendered import LAYOUTS, profile_script, script
from tests.unit.submit.stubs import complaints

FULL = {
    "gpus_per_node": 4,
    "memory": "64G",
    "partition": "a",
    "account": "b",
    "modules": ["cuda/12.4"],
    "environment": {"NAME": "a value"},
    "health": {"command": ["dcgmi", "diag"]},
    "network": {"gloo_interface": "ib0", "nccl_interface": "ib0", "nccl_ib_hca": "mlx5"},
    "engine": {"servers_per_node": 2, "gpus_per_node": 4},
    "staging": {"folder": "/tmp", "keys": ["model.init_from"]},
}
CONTAINERS = {
    "none": {},
    "pyxis": {"runtime": "pyxis", "image": "reg#a:1", "mounts": ["/a b:/b", "/c:/c"]},
    "apptainer": {"runtime": "apptainer", "image": "/a.sif", "mounts": ["/a b:/b"]},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_shellcheck_finds_nothing_where_everything_is_set(layout: str, container: str, tmp_path: Path) -> None:
    profile = {**FULL, "layout": layout, "container": CONTAINERS[container], "python": "/usr/bin/python3"}
    seeds = None if layout == "hetjob" else "0-2"
    assert complaints(script(tmp_path, ("model.init_from=tests/data/base",), seeds, **profile), tmp_path) == ""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shellcheck_finds_nothing_where_nothing_is_set(layout: str, tmp_path: Path) -> None:
    assert complaints(script(tmp_path, layout=layout, health={"enabled": False}), tmp_path) == ""


@pytest.mark.parametrize("path", sorted((REPOSITORY / "slurm" / "profiles").glob("*.yaml")), ids=lambda path: path.name)
def test_shellcheck_finds_nothing_in_the_scripts_of_the_profiles_that_come_with_megarl(
    path: Path, tmp_path: Path
) -> None:
    assert complaints(profile_script(path), tmp_path) == ""
