"""What a profile says: where on a cluster a recipe runs, and how."""

from dataclasses import dataclass, field
from typing import Optional

from megarl.config.errors import UserError
from megarl.config.fields import LONGEST_S, key

LAYOUTS = ("colocated", "split", "hetjob")


class ProfileError(UserError):
    """A profile that cannot be right, or does not fit the recipe, found before anything is submitted."""


@dataclass
class EngineNodes:
    """The nodes of the engine's servers, for layout=split and layout=hetjob."""

    nodes: int = key(1, "Nodes; each runs `servers_per_node` servers.", low=1)
    servers_per_node: int = key(1, "Servers a node; each holds the whole model.", low=1)
    cpus_per_task: int = key(1, "CPU cores a server.", low=1)
    gpus_per_node: int = key(0, "GPUs a node.", low=0)
    memory: Optional[str] = key(None, "Memory a node, such as 64G; null leaves it to the cluster.")
    partition: Optional[str] = key(
        None, "Partition of the second component of a heterogeneous job; null is the first's."
    )
    constraint: Optional[str] = key(None, "Features that the second component's nodes must have.")
    start_timeout_s: float = key(900.0, "Longest wait for all servers to come up, in seconds.", above=0, high=LONGEST_S)


@dataclass
class RequeueConfig:
    """What happens to a job that was stopped, or failed, before its run was over."""

    enabled: bool = key(True, "Whether the job puts itself back into the queue.")
    signal_before_s: int = key(
        120,
        "Seconds before the time limit, and fewer than it has, at which the run is told to save and stop.",
        low=1,
        high=65535,
    )
    same_step: int = key(3, "Failures in a row at the same step of the run after which it is not tried again.", low=1)
    failures: int = key(10, "Failures in all after which it is not tried again.", low=1)


@dataclass
class HealthConfig:
    """What each node is asked before the run starts; a node that does not pass is excluded, and the job requeued."""

    enabled: bool = key(True, "Whether nodes are checked.")
    timeout_s: float = key(
        120.0, "Longest wait for all nodes to answer, in seconds; who has not answered is bad.", above=0, high=LONGEST_S
    )
    free_gib: float = key(1.0, "Least free space in the temporary folder of a node, in GiB.", low=0)
    command: list[str] = key(
        factory=list, doc="A program of your own and its arguments, run on each node; any exit code but 0 is bad."
    )
    excluded: int = key(4, "Bad nodes that are excluded at most; with one more the job ends.", low=0)


@dataclass
class ContainerConfig:
    """The container that the tasks of a job run in."""

    runtime: str = key(
        "none",
        "'pyxis' passes the image to srun, 'apptainer' starts each task by it.",
        choices=("none", "pyxis", "apptainer"),
    )
    image: Optional[str] = key(None, "The image, as the runtime names it.")
    mounts: list[str] = key(factory=list, doc="Folders to show inside, each as /outside:/inside.")


@dataclass
class StagingConfig:
    """Files that are copied to the nodes before the run starts, and read there."""

    folder: Optional[str] = key(
        None, "Absolute path of a folder on each node's own disk, such as /tmp; null copies nothing."
    )
    keys: list[str] = key(factory=list, doc="Recipe keys that name the files or folders, such as model.init_from.")


@dataclass
class NetworkConfig:
    """Which interfaces the processes talk over; null leaves it to the libraries."""

    gloo_interface: Optional[str] = key(None, "GLOO_SOCKET_IFNAME.")
    nccl_interface: Optional[str] = key(None, "NCCL_SOCKET_IFNAME.")
    nccl_ib_hca: Optional[str] = key(None, "NCCL_IB_HCA: the InfiniBand adapters.")


@dataclass
class Profile:
    """A kind of job on one cluster. What a profile leaves out has the default given here."""

    layout: str = key(
        "colocated",
        "'colocated' has one allocation whose nodes train and generate, 'split' one whose last nodes run the engine's "
        "servers, 'hetjob' a job of two components, for trainer and servers.",
        choices=LAYOUTS,
    )
    templates: str = key("..", "Folder of the templates, relative to the profile's.")
    logs: str = key("runs/slurm", "Folder of the scripts and the jobs' output.")
    nodes: int = key(1, "Nodes of the trainer.", low=1)
    tasks_per_node: int = key(1, "Trainer processes a node, one for each GPU where there are GPUs.", low=1)
    cpus_per_task: int = key(1, "CPU cores a trainer process.", low=1)
    gpus_per_node: int = key(0, "GPUs a node of the trainer.", low=0)
    memory: Optional[str] = key(None, "Memory a node of the trainer, such as 64G; null leaves it to the cluster.")
    time_limit: str = key("24:00:00", "Longest run of one job, as SLURM writes times, in quotes.")
    partition: Optional[str] = key(None, "Partition.")
    account: Optional[str] = key(None, "Account that pays.")
    qos: Optional[str] = key(None, "Quality of service.")
    reservation: Optional[str] = key(None, "Reservation.")
    constraint: Optional[str] = key(None, "Features that the nodes must have.")
    sbatch: list[str] = key(factory=list, doc="Further options of sbatch, each as --name=value.")
    array_limit: int = key(0, "Tasks of an array that run at once at most; 0 is no limit.", low=0)
    python: Optional[str] = key(
        None, "Interpreter that has megarl, where the tasks run; null is the one that runs `megarl submit`."
    )
    modules: list[str] = key(factory=list, doc="Environment modules to load.")
    environment: dict[str, str] = key(factory=dict, doc="Environment variables of the job.")
    engine: EngineNodes = field(default_factory=EngineNodes)
    requeue: RequeueConfig = field(default_factory=RequeueConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    container: ContainerConfig = field(default_factory=ContainerConfig)
    staging: StagingConfig = field(default_factory=StagingConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
