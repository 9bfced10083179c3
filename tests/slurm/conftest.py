"""One cluster for all tests of a session, and the run that every broken one is compared with."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing
from tests.slurm.submitted import Submitted


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs SLURM where no cluster can be started."""
    reason = missing()
    for item in items:
        if reason is not None and item.get_closest_marker("slurm"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes."""
    # of a short name: sockets lie in it
    folder = Path(tempfile.mkdtemp(prefix="megarl-slurm-"))
    os.environ["PATH"] += ":/usr/sbin"
    try:
        with contextlib.closing(Cluster(folder, nodes=4)) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def nodes(cluster: Cluster) -> Cluster:
    """The cluster with all its nodes up."""
    cluster.wait_for_nodes()
    return cluster


@pytest.fixture(scope="session")
def unbroken(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Submitted:
    """The tiny run on two nodes, which nothing disturbs, at its end."""
    run = Submitted(cluster, tmp_path_factory.mktemp("unbroken"))
    run.submit()
    run.wait_for("COMPLETED")
    return run
