"""Profiles that are refused, each with one sentence; and those that come with megarl."""

from copy import deepcopy
from pathlib import Path

import pytest

from megarl.config.errors import UserError
from megarl.config.yaml_text import format_value
from megarl.submit.job import build_job
from megarl.submit.load import load_profile
from megarl.submit.reference import reference
from megarl.submit.tasks import Task
from tests.runs import RECIPE, REPOSITORY
from tests.unit.submit.rendered import SERVED, demo_tasks, loaded


@pytest.mark.parametrize("path", sorted((REPOSITORY / "slurm" / "profiles").glob("*.yaml")), ids=lambda path: path.name)
def test_the_profiles_that_come_with_megarl_load(path: Path) -> None:
    assert load_profile(path).time_limit


def test_the_page_of_keys_is_this_versions() -> None:
    assert (REPOSITORY / "docs" / "profile.md").read_text() == reference()


REFUSED = {
    "a key that is none": ({"nods": 2}, "nods=2 .* is not a profile key; did you mean nodes?"),
    "a wrong type": ({"nodes": "two"}, "nodes=two .* is not a whole number"),
    "a value out of range": ({"engine": {"nodes": 0}}, r"engine\.nodes=0 .* is below 1"),
    "no known layout": ({"layout": "spilt"}, "layout=spilt .* did you mean split?"),
    "a directive that breaks out": ({"partition": "a b"}, 'partition="a b" holds a character'),
    "an option with a line break": ({"sbatch": ["--mem=1\n#SBATCH --wrap=x"]}, "sbatch=.* holds a character"),
    "no option": ({"sbatch": ["exclusive"]}, "sbatch=exclusive is no option of sbatch"),
    "one that is cut short": ({"sbatch": ["--tim=1"]}, "sbatch=.*--tim=1.* sets what another key"),
    "a time without end": ({"time_limit": "9" * 5000}, "time_limit=.* is no time as SLURM writes them"),
    "an option that megarl sets": ({"sbatch": ["--array=0-9"]}, "sbatch=.*--array=0-9.* sets what another key"),
    "no time": ({"time_limit": "a day"}, "time_limit=.* holds a character"),
    "a time in no form of SLURM's": ({"time_limit": "24h"}, "time_limit=.*24h.* is no time as SLURM writes them"),
    "a signal before the start": (
        {"time_limit": "10:00", "requeue": {"signal_before_s": 601}},
        r"requeue\.signal_before_s=601 leaves nothing of time_limit=\"10:00\", which is 600 s",
    ),
    "a signal at the start": (
        {"time_limit": "2", "requeue": {"signal_before_s": 120}},
        r"requeue\.signal_before_s=120 leaves nothing of time_limit=\"2\", which is 120 s",
    ),
    "no variable": ({"environment": {"A;B": "x"}}, "environment.A;B is no name of a variable"),
    "a variable of bash's own": ({"environment": {"UID": "7"}}, "environment.UID is a variable that bash lets no"),
    "no interpreter's name": ({"python": ""}, 'python="" is empty'),
    "no interface's name": ({"network": {"gloo_interface": ""}}, r'network\.gloo_interface="" is empty'),
    "more processes than GPUs": (
        {"tasks_per_node": 8, "gpus_per_node": 4},
        "gpus_per_node=4 leaves some of tasks_per_node=8 trainer processes without",
    ),
    "servers that share a GPU": (
        {"engine": {"servers_per_node": 2, "gpus_per_node": 1}},
        r"engine\.gpus_per_node=1 cannot be shared out evenly by engine\.servers_per_node=2",
    ),
    "a wait of ages": ({"health": {"timeout_s": 1e300}}, r"health\.timeout_s=1e\+300 .* is above 1000000000"),
    "a container without an image": ({"container": {"runtime": "pyxis"}}, "has no container.image"),
    "a container without an interpreter": (
        {"container": {"runtime": "apptainer", "image": "a.sif"}},
        "container.runtime=apptainer has no python",
    ),
    "staging to nowhere": ({"staging": {"keys": ["model.init_from"]}}, "has no staging.folder"),
    "staging to the shared folder": ({"staging": {"folder": "tmp"}}, "staging.folder=tmp is relative"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path) -> None:
    profile, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        loaded(tmp_path, **profile)


def test_the_time_limit_may_be_just_longer_than_the_signal_or_none(tmp_path: Path) -> None:
    assert loaded(tmp_path, time_limit="2:01", requeue={"signal_before_s": 120}).time_limit == "2:01"
    assert loaded(tmp_path, time_limit="UNLIMITED", requeue={"signal_before_s": 65535}).time_limit == "UNLIMITED"


def test_settings_win_over_the_file(tmp_path: Path) -> None:
    loaded(tmp_path, nodes=2, time_limit="1:00:00")
    profile = load_profile(tmp_path / "profile.yaml", ["nodes=3", "engine.nodes=2"])
    assert (profile.nodes, profile.engine.nodes, profile.time_limit) == (3, 2, "1:00:00")


def test_a_value_that_refers_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "profile.yaml").write_text("time_limit: '10'\nlogs: ${account}\naccount: ${logs}\n")
    with pytest.raises(UserError, match="cannot be read as a profile: "):
        load_profile(tmp_path / "profile.yaml")


def test_an_option_with_which_another_begins_is_its_own(tmp_path: Path) -> None:
    assert loaded(tmp_path, time_limit="10", sbatch=["--gpus=8"]).sbatch == ["--gpus=8"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load_profile(tmp_path / "none.yaml")


UNFIT = {
    "another number of processes": ({"nodes": 2}, (), "parallel.world_size=1, and the profile has nodes=2"),
    "no servers": ({"layout": "split"}, (), "rollout.engine=embedded has none"),
    "memory of one machine": (
        {"layout": "split"},
        ("rollout.engine=vllm",),
        "sync.transport=shared_memory reaches no other node",
    ),
    "other servers": (
        {"layout": "split"},
        (*SERVED, "engine.urls=['http://127.0.0.1:1']"),
        "engine.urls=.* names running ones",
    ),
    "another number of servers": ({"layout": "hetjob"}, (*SERVED, "engine.replicas=3"), "= 1 servers"),
    "a save that takes longer than there is time for": (
        {"requeue": {"signal_before_s": 60}},
        ("checkpoint.stop_grace_s=90",),
        r"checkpoint\.stop_grace_s=90 is longer than requeue\.signal_before_s=60",
    ),
    "fewer GPUs than a server spans": (
        {"layout": "split", "engine": {"servers_per_node": 2, "gpus_per_node": 4}},
        (*SERVED, "engine.tensor=4"),
        "engine.tensor=4 is more than the 2 GPUs of a server",
    ),
    "a variable that is none": ({"layout": "split"}, (*SERVED, "engine.token_variable='a;b'"), "no name of a variable"),
    "no path to copy": ({"staging": {"folder": "/tmp", "keys": ["seed"]}}, (), "staging.keys=seed is 0 in the recipe"),
    "no key to copy": ({"staging": {"folder": "/tmp", "keys": ["sed"]}}, (), "staging.keys=sed is not a recipe key"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_profile_that_does_not_fit_the_recipe(case: str, tmp_path: Path) -> None:
    profile, overrides, message = UNFIT[case]
    with pytest.raises(UserError, match=message):
        build_job(RECIPE, demo_tasks(overrides), loaded(tmp_path, **profile), "now", {})


def test_the_trainer_beside_servers_is_not_told_how_to_start_them(tmp_path: Path) -> None:
    overrides = (*SERVED, "engine.tensor=2", "engine.kv_cache_gib=1")
    job = build_job(RECIPE, demo_tasks(overrides), loaded(tmp_path, layout="split"), "now", {})
    (run,) = job.runs
    assert run.servers == (*overrides, "engine.allow_remote=true")
    assert run.trainer == (*overrides, "engine.tensor=1", "engine.kv_cache_gib=null", "engine.allow_remote=true")


def test_each_run_of_a_sweep_has_the_copy_of_its_own_model(tmp_path: Path) -> None:
    """A sweep over a staged key must not train the first value's model under every name."""
    (demo,) = demo_tasks(())
    runs = []
    for name in ("a", "b", "a"):
        recipe = deepcopy(demo.recipe)
        (tmp_path / name).mkdir(exist_ok=True)
        recipe.model.init_from = str(tmp_path / name)
        runs.append(Task(recipe, (f"model.init_from={tmp_path / name}",)))
    profile = loaded(tmp_path, staging={"folder": "/disk", "keys": ["model.init_from"]})
    job = build_job(RECIPE, runs, profile, "now", {})
    first, second = job.staged
    assert [Path(copy.source).name for copy in job.staged] == ["a", "b"] and first.target != second.target
    read = [run.trainer[-1] for run in job.runs]
    assert read == [f"model.init_from={format_value(copy.target)}" for copy in (first, second, first)]
