"""The #SBATCH lines of a job."""

from megarl.submit.profile import EngineNodes, Profile
from megarl.submit.shell import Directive, directive


def options(profile: Profile, name: Directive, tasks: int) -> tuple[Directive, ...]:
    """Options of sbatch, of the job's first or only component.

    Args:
        profile: says which.
        name: the job's.
        tasks: runs; more than one make an array.
    """
    split = profile.layout == "split"
    output = f"{profile.logs}/%x-%A_%a.out" if tasks > 1 else f"{profile.logs}/%x-%j.out"
    words = [
        f"--job-name={name}",
        "--comment=megarl",
        f"--output={output}",
        # a requeued job goes on in the same file
        "--open-mode=append",
        "--requeue" if profile.requeue.enabled else "--no-requeue",
        f"--signal=B:USR1@{profile.requeue.signal_before_s}",
        f"--time={profile.time_limit}",
        f"--nodes={profile.nodes + (profile.engine.nodes if split else 0)}",
    ]
    if tasks > 1:
        limit = f"%{profile.array_limit}" if profile.array_limit else ""
        words.append(f"--array=0-{tasks - 1}{limit}")
    per_node = profile.tasks_per_node
    cpus, gpus = per_node * profile.cpus_per_task, profile.gpus_per_node
    if split:
        # one request for both kinds of nodes: each must have what the larger needs
        cpus = max(cpus, profile.engine.servers_per_node * profile.engine.cpus_per_task)
        gpus = max(gpus, profile.engine.gpus_per_node)
    words += [f"--ntasks-per-node={per_node}", f"--cpus-per-task={-(-cpus // per_node)}"]
    words += [f"--gpus-per-node={gpus}"] if gpus else []
    words += _asked(mem=profile.memory, partition=profile.partition, constraint=profile.constraint)
    words += _of_both(profile)
    return tuple(directive("options", word) for word in words)


def engine_options(profile: Profile) -> tuple[Directive, ...]:
    """Options of the second component of a heterogeneous job."""
    engine: EngineNodes = profile.engine
    words = [
        f"--nodes={engine.nodes}",
        f"--ntasks-per-node={engine.servers_per_node}",
        f"--cpus-per-task={engine.cpus_per_task}",
        *([f"--gpus-per-node={engine.gpus_per_node}"] if engine.gpus_per_node else []),
        *_asked(mem=engine.memory, partition=engine.partition or profile.partition, constraint=engine.constraint),
        *_of_both(profile),
    ]
    return tuple(directive("options", word) for word in words)


def _of_both(profile: Profile) -> list[str]:
    asked = _asked(account=profile.account, qos=profile.qos, reservation=profile.reservation)
    return [*asked, *profile.sbatch]


def _asked(**named: str | None) -> list[str]:
    return [f"--{name}={value}" for name, value in named.items() if value is not None]
