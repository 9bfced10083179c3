"""Jobs on a real SLURM that are stopped, killed or fail: they come back, and end as if nothing had happened."""

from pathlib import Path

import pytest

from megarl.submit.progress import saved
from tests.slurm.cluster import Cluster
from tests.slurm.submitted import STEPS, Submitted

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(3600)]


def test_two_nodes(unbroken: Submitted) -> None:
    """Two tasks on two nodes train one run to its end."""
    assert len(unbroken.attempts()) == 1
    assert unbroken.numbers()[-1]["phase"] == "rl" and unbroken.numbers()[-1]["step"] == STEPS
    assert "data 2" in unbroken.output()


def test_the_time_limit(nodes: Cluster, unbroken: Submitted, tmp_path: Path) -> None:
    """SLURM sends USR1 before the limit: the run saves, the job requeues, and the end is the unbroken run's."""
    run = Submitted(nodes, tmp_path)
    run.hold(3)
    run.submit(requeue={"signal_before_s": 600})
    run.wait_for_step(2)
    # it comes within half a minute, as fewer than 600 seconds are left
    nodes.run("scontrol", "update", f"JobId={run.job}", "EndTime=now+400")
    nodes.wait_until(lambda: len(run.attempts()) == 1 and nodes.state(run.job) == "PENDING")
    # the shorter limit is the job's from then on
    nodes.run("scontrol", "update", f"JobId={run.job}", "TimeLimit=3:00:00")
    run.let_go()
    (attempt,) = run.attempts()
    assert (attempt["verdict"], attempt["stopped"], attempt["code"]) == ("again", "USR1", 138), run.output()
    assert attempt["saved"] == f"1-rl-{int(attempt['reached'].split()[1]):08d}"
    run.wait_for("COMPLETED")
    assert [attempt["verdict"] for attempt in run.attempts()] == ["again", "done"]
    assert run.equals(unbroken)


def test_preemption(nodes: Cluster, unbroken: Submitted, tmp_path: Path) -> None:
    """An urgent job takes the nodes: the run saves, comes back after it, and ends as the unbroken run did."""
    run = Submitted(nodes, tmp_path)
    run.hold(3)
    run.submit()
    run.wait_for_step(2)
    urgent = ("--parsable", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=true")
    run.wait_for("COMPLETED", nodes.run("sbatch", *urgent).strip())
    run.let_go()
    run.wait_for("COMPLETED")
    first, second = run.attempts()
    assert (first["verdict"], first["stopped"], first["code"]) == ("again", "TERM", 143), run.output()
    assert (first["saved"], second["verdict"]) == ("1-rl-00000003", "done")
    assert run.equals(unbroken)


def test_a_lost_node(nodes: Cluster, unbroken: Submitted, tmp_path: Path) -> None:
    """A node loses its power: the job comes back on others and ends as the unbroken run did."""
    run = Submitted(nodes, tmp_path)
    run.hold(6)
    run.submit("parallel.timeout_s=60")
    run.wait_for_step(5)
    # not the first node, whose loss SLURM alone notices
    lost = nodes.run("scontrol", "show", "hostnames", _nodes_of(nodes, run.job)).split()[1]
    nodes.lose_power(lost)
    try:
        run.let_go()
        run.wait_for("COMPLETED")
        assert lost not in _nodes_of(nodes, run.job)
    finally:
        nodes.start_node(lost)
    assert run.equals(unbroken)


def test_a_bad_node_is_excluded(nodes: Cluster, tmp_path: Path) -> None:
    """A node that does not pass the health check: the job is requeued without it."""
    run = Submitted(nodes, tmp_path)
    bad = "n1"
    run.submit(
        "rl.steps=1", nodes=1, health={"free_gib": 0.0, "command": ["bash", "-c", f"[[ $(hostname) != {bad} ]]"]}
    )
    run.wait_for("COMPLETED")
    first, second = run.attempts()
    assert (first["verdict"], first["bad"]) == ("again", [bad])
    assert second["verdict"] == "done"
    assert f"{bad} is bad: health.command ended with 1" in run.output()
    assert f"ExcNodeList={bad}" in nodes.run("scontrol", "show", "job", run.job)


def test_repeated_failure_stops_the_chain(nodes: Cluster, tmp_path: Path) -> None:
    """A run that fails at the same step again and again is given up with a reason, and its chain with it."""
    run = Submitted(nodes, tmp_path)
    run.crash()
    run.submit("--chain", "2", nodes=1, requeue={"same_step": 2})
    run.wait_for("FAILED", run.jobs[1])
    assert [attempt["verdict"] for attempt in run.attempts()] == ["again", "stop"]
    assert "2 failures in a row at sft 6, the last with exit code 1" in (run.run / "slurm" / "stopped.json").read_text()
    assert "given up: 2 failures in a row" in run.output()
    assert "ended: 2 failures in a row" in run.command("jobs", "--logs", str(tmp_path / "logs"))


def test_a_chain_goes_on_where_a_job_ended(nodes: Cluster, tmp_path: Path) -> None:
    """Without requeue the next job of the chain goes on, and the one after it is not started."""
    run = Submitted(nodes, tmp_path)
    run.hold(3, nodes=1)
    run.submit("--chain", "3", nodes=1, requeue={"enabled": False})
    run.wait_for_step(2)
    nodes.run("scancel", "--batch", "--signal=USR1", run.job)
    run.wait_for("FAILED")
    assert "ExitCode=138:0" in nodes.run("scontrol", "show", "job", run.job)
    run.let_go()
    run.wait_for("COMPLETED", run.jobs[1])
    run.wait_for("CANCELLED", run.jobs[2])
    assert saved(run.run).startswith("2-done-")


def _nodes_of(cluster: Cluster, job: str) -> str:
    return cluster.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%N").strip()
