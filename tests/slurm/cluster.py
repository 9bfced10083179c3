"""A real SLURM cluster on this machine: munged, slurmctld and one slurmd a node, all in one folder.

Each node has its own host name, mounts, /dev/shm and process ids, so that it can lose its power. Node names resolve
on the nodes alone. Nothing outside the folder is written; it needs root for the name spaces.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")

_CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# the credential's life is also how long a requeued job waits
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CommunicationParameters=NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PlugStackConfig={folder}/plugstack.conf
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
# nodes may have more processors than the machine
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
# heterogeneous jobs are started by backfill alone
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
# a step and a save must end within it, on a machine that does other things too
KillWait=60
SlurmdTimeout=40
MessageTimeout=40
TCPTimeout=10
InactiveLimit=0
MinJobAge=3600
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
# its jobs take nodes away from the others
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""

GPUS = 8
"""Devices a node that SLURM takes for GPUs; there is nothing behind them."""

# The first process of a node: it reaps what is left over, and when it dies the kernel ends the whole node.
_NODE = """
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount -t tmpfs -o size=1g tmpfs /dev/shm
slurmd -D -N "$1" &
wait $!
"""


class Cluster:
    """A running cluster; its commands need the environment `environment`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        """Starts it. Args: folder: empty, of at most 80 characters for the sockets in it. nodes: how many."""
        assert len(str(folder)) <= 80
        self.folder, self.names = folder, [f"n{number + 1}" for number in range(nodes)]
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def run(self, *command: str) -> str:
        """Output of one of SLURM's commands."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def state(self, job: str) -> str:
        """A job's state, such as RUNNING, or '' where SLURM has forgotten it, or does not answer at the moment."""
        command = ["squeue", "--noheader", "--states=all", "--format=%i %T"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=300)
        words = [line.split() for line in done.stdout.splitlines()]
        # the first component speaks for a heterogeneous job
        return next((state for name, state in words if name in (job, f"{job}+0")), "")

    def lose_power(self, node: str) -> None:
        """Kills a node with everything on it."""
        (first,) = psutil.Process(self._daemons[node].pid).children()
        first.kill()
        self._daemons[node].wait(timeout=20)

    def start_node(self, node: str) -> None:
        """Starts a node."""
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        apart = ("unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        self._spawn(node, *apart, "bash", "-c", _NODE, "node", node, str(self.folder))

    def wait_for_nodes(self) -> None:
        """Returns once all nodes are up."""
        self.wait_until(lambda: len(self._idle()) == len(self.names), timeout_s=300)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 1500) -> None:
        """Waits; fails with the daemons' last words."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                log = (self.folder / "slurmctld.log").read_text().splitlines()[-20:]
                raise AssertionError("\n".join(["did not happen in time", self.run("squeue", "--states=all"), *log]))
            time.sleep(0.5)

    def close(self) -> None:
        """Ends every job and daemon."""
        if "slurmctld" in self._daemons and self._daemons["slurmctld"].poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(["scancel", "--me", "--full"], env=self.environment, timeout=20, capture_output=True)
        for name in self.names:
            node = self._daemons.get(name)
            if node is not None and node.poll() is None:
                self.lose_power(name)
        for name in ("slurmctld", "munged"):
            daemon = self._daemons.get(name)
            if daemon is not None:
                daemon.send_signal(signal.SIGTERM)
                try:
                    daemon.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait(timeout=10)

    def _start(self) -> None:
        for part in ("state", "spool"):
            (self.folder / part).mkdir()
        (self.folder / "plugstack.conf").touch()
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (self.folder / "munge.key").chmod(0o600)
        hosts = [f"127.0.0.{10 + place} {name}" for place, name in enumerate(self.names, start=1)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
        lines = [
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.{10 + place} Port={free_port()} "
            f"CPUs=256 RealMemory=4000 Gres=gpu:{GPUS}"
            for place, name in enumerate(self.names, start=1)
        ]
        config = _CONFIG.format(port=free_port(), folder=self.folder)
        (self.folder / "slurm.conf").write_text("\n".join([*lines, config]))
        devices = self.folder / "devices"
        devices.mkdir()
        for number in range(GPUS):
            (devices / f"gpu{number}").symlink_to("/dev/null")
        (self.folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={devices}/gpu[0-{GPUS - 1}]\n")
        files = {
            "key-file": "munge.key",
            "socket": "munge.socket",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munged.seed",
        }
        options = [f"--{option}={self.folder / file}" for option, file in files.items()]
        self._spawn("munged", "munged", "--foreground", "--force", *options)
        self.wait_until_there(self.folder / "munge.socket")
        self._spawn("slurmctld", "slurmctld", "-D")
        for name in self.names:
            self.start_node(name)
        self.wait_for_nodes()

    def wait_until_there(self, file: Path) -> None:
        """Waits for a file."""
        deadline = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline, f"{file} did not come"
            time.sleep(0.1)

    def _spawn(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.out", "ab") as output:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _idle(self) -> set[str]:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%N %T"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        # a line for each of a node's partitions
        words = [line.split() for line in done.stdout.splitlines()]
        return {node for node, state in words if state in ("idle", "mixed", "allocated")}


def missing() -> str | None:
    """Why no cluster can be started here; None where one can."""
    if os.geteuid() != 0:
        return "a cluster of its own needs root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    return f"{', '.join(absent)} missing; `make test-slurm` installs them" if absent else None
