"""Rendered scripts: what shellcheck says of them, and what bash makes of hostile values in them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megarl.config.yaml_text import format_value
from tests.unit.submit.hostile import MARK, VALUES
from tests.unit.submit.rendered import LAYOUTS, script

SHELLCHECK = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
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


def complaints(text: str, folder: Path) -> str:
    """What shellcheck says of a script."""
    (folder / "job.sbatch").write_text(text)
    done = subprocess.run([SHELLCHECK, str(folder / "job.sbatch")], capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_shellcheck_finds_nothing_where_everything_is_set(layout: str, container: str, tmp_path: Path) -> None:
    profile = {**FULL, "layout": layout, "container": CONTAINERS[container], "python": "/usr/bin/python3"}
    seeds = None if layout == "hetjob" else "0-2"
    assert complaints(script(tmp_path, ("model.init_from=tests/data/base",), seeds, **profile), tmp_path) == ""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shellcheck_finds_nothing_where_nothing_is_set(layout: str, tmp_path: Path) -> None:
    assert complaints(script(tmp_path, layout=layout, health={"enabled": False}), tmp_path) == ""


STUB = """#!{python} -P
import json, os, sys
words = sys.argv[1:]
if os.path.basename(sys.argv[0]) == "scontrol":
    print("n1\\nn2" if "hostnames" in words else "")
elif os.path.basename(sys.argv[0]) == "srun":
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(json.dumps([words, os.environ.get("HOSTILE")]) + "\\n")
    if "health" in words:
        print(json.dumps({{"node": "n1", "complaint": None}}))
        print(json.dumps({{"node": "n2", "complaint": None}}))
"""


def run_with_stubs(text: str, folder: Path) -> list[tuple[list[str], str | None]]:
    """Runs a script whose SLURM is a stub that notes what srun is given; returns those notes."""
    stubs = folder / "stubs"
    stubs.mkdir()
    for name in ("srun", "scontrol", "squeue", "module"):
        (stubs / name).write_text(STUB.format(python=sys.executable))
        (stubs / name).chmod(0o755)
    (folder / "job.sbatch").write_text(text)
    calls = folder / "calls"
    environment = {
        **os.environ,
        "PATH": f"{stubs}:{os.environ['PATH']}",
        "CALLS": str(calls),
        **{name: "1" for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_ARRAY_TASK_ID")},
    }
    done = subprocess.run(
        ["bash", str(folder / "job.sbatch")], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in calls.read_text().splitlines()]


def test_hostile_values_arrive_and_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the recipe's overrides and folder, and everywhere in the profile that takes free text."""
    monkeypatch.chdir(tmp_path)
    # a name has room for some of them
    folder = "run" + "".join(value for value in VALUES if "'" in value or "\n" in value)
    overrides = [f"data.options.v{number}={format_value(value)}" for number, value in enumerate(VALUES)]
    overrides += ["parallel.world_size=2", f"output_dir={format_value(folder)}"]
    joined = "".join(VALUES)
    text = script(
        tmp_path,
        overrides=tuple(overrides),
        nodes=2,
        environment={"HOSTILE": joined},
        modules=list(VALUES),
        network={"gloo_interface": joined},
        health={"command": ["true", *VALUES]},
        container={"runtime": "pyxis", "image": "i" + joined, "mounts": [f"/a{value}:/b" for value in VALUES]},
        python="/usr/bin/python3",
    )
    health, train = run_with_stubs(text, tmp_path)
    assert health[0][-len(VALUES) :] == list(VALUES)
    assert f"--container-image=i{joined}" in train[0]
    assert "--container-mounts=" + ",".join(f"/a{value}:/b" for value in VALUES) in train[0]
    assert train[0][-len(overrides) :] == overrides
    assert train[1] == joined
    assert not list(tmp_path.rglob(MARK))
    assert (tmp_path / folder / "slurm" / "attempts.jsonl").exists()


def directives(text: str) -> list[str]:
    """What sbatch takes for its options, the job's name left out, which the run's gives."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith("#SBATCH")]
    return [line for line in lines if "--job-name" not in line]


def test_no_value_becomes_a_directive(tmp_path: Path) -> None:
    hostile = script(
        tmp_path,
        overrides=(f"name={format_value('x' + ''.join(VALUES))}",),
        environment={"A": "".join(VALUES)},
        modules=list(VALUES),
    )
    assert directives(hostile) == directives(script(tmp_path, ("name=x",)))
