"""What this machine has, what it lacks, and how to get that."""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.table import Table

_PIP = ".venv/bin/pip install -c constraints.txt"
_INSTALL = f"{_PIP} -e ."


@dataclass(frozen=True)
class Finding:
    """One piece that a run may use.

    Attributes:
        name: the piece.
        found: what is there, such as a version; None if it is missing.
        gives: what it is for.
        how: how to get it.
        needed: whether the demo needs it.
    """

    name: str
    found: str | None
    gives: str
    how: str
    needed: bool = False


def doctor() -> int:
    """Prints whether the demo can run, then every finding: a table on a terminal, plain lines elsewhere.

    Returns:
        `exit_code` of the findings.
    """
    findings = [*packages(), *torch_findings(), *slurm(), *hardware()]
    missing = [finding.name for finding in findings if finding.needed and finding.found is None]
    print(f"The demo cannot run: {', '.join(missing)} missing." if missing else "The demo can run.")
    if sys.stdout.isatty():
        Console().print(table(findings))
    else:
        print("\n".join(line(finding) for finding in findings))
    return exit_code(findings)


def exit_code(findings: list[Finding]) -> int:
    """0 if everything that the demo needs is there, else 1."""
    return int(any(finding.needed and finding.found is None for finding in findings))


def line(finding: Finding) -> str:
    """One finding as a line of text."""
    if finding.found is not None:
        return f"{finding.name}: {finding.found}"
    return f"{finding.name}: missing; gives {finding.gives}; {finding.how}"


def table(findings: list[Finding]) -> Table:
    """The findings as a table for a terminal."""
    rows = Table("", "found", "gives", "how to get it")
    for finding in findings:
        mark = "[red]missing[/red]" if finding.needed else "[yellow]missing[/yellow]"
        rest = ("", "") if finding.found is not None else (finding.gives, finding.how.replace("[", r"\["))
        rows.add_row(finding.name, mark if finding.found is None else finding.found, *rest)
    return rows


def packages() -> list[Finding]:
    """Python and the installed versions of every package that megarl can use."""
    wanted = (
        ("torch", "tensors and torch.distributed", _INSTALL, True),
        ("megatron-core", "the trainer's model and optimizer", _INSTALL, True),
        ("transformers", "tokenizers and the Hugging Face weight layout", _INSTALL, True),
        ("transformer-engine", "fused and FP8 layers on GPUs", _extra("te"), False),
        ("vllm", "rollouts on vLLM servers", "see docs/engines.md: a CPU and a GPU take different packages", False),
        ("sglang", "rollouts on SGLang servers", "see docs/engines.md: it has an environment of its own", False),
        ("reasoning-gym", "generated tasks with scorers", _extra("reasoning-gym"), False),
        ("wandb", "metrics on Weights & Biases", _extra("wandb"), False),
    )
    python = platform.python_version() if sys.version_info >= (3, 11) else None
    found = [Finding(name, _version(name), gives, how, needed) for name, gives, how, needed in wanted]
    return [Finding("python", python, "the language of megarl", "install Python 3.11 or newer", needed=True), *found]


def torch_findings() -> list[Finding]:
    """Torch's build, the GPUs it sees and the collective backends it was built with."""
    gloo = ("torch.distributed gloo", "collectives on CPUs", "install a torch build with gloo", True)
    nccl = ("torch.distributed nccl", "collectives on GPUs", "install a CUDA build of torch", False)
    gpus = ("CUDA GPUs", "training at useful sizes", "needs an NVIDIA driver and a CUDA build of torch", False)
    try:
        import torch
    except (ImportError, OSError) as error:
        # A wheel can be there and not load, for want of a shared library.
        reason = str(error).split("\n")[0]
        build = Finding("torch build", None, "everything", f"reinstall torch, it does not load: {reason}", needed=True)
        return [build, *(Finding(name, None, gives, how, needed) for name, gives, how, needed in (gloo, nccl, gpus))]
    available = torch.distributed.is_available()
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    found = (
        "yes" if available and torch.distributed.is_gloo_available() else None,
        "yes" if available and torch.distributed.is_nccl_available() else None,
        f"{len(names)}: {', '.join(sorted(set(names)))}" if names else None,
    )
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    rows = [
        Finding(name, there, gives, how, needed)
        for (name, gives, how, needed), there in zip((gloo, nccl, gpus), found, strict=True)
    ]
    return [Finding("torch build", cuda, "everything", "", needed=True), *rows]


def slurm() -> list[Finding]:
    """SLURM's commands with their versions."""
    how = "use a machine with the SLURM client commands"
    return [
        Finding("sbatch", _tool_version("sbatch"), "jobs on a cluster, by megarl submit", how),
        Finding("srun", _tool_version("srun"), "the start of one megarl process a rank", how),
    ]


def hardware() -> list[Finding]:
    """Usable CPU cores, physical memory, and the free disk space of the working folder."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = shutil.disk_usage(".").free
    return [
        Finding("CPU cores", str(len(os.sched_getaffinity(0))), "", ""),
        Finding("memory", f"{memory / 2**30:.1f} GiB", "", ""),
        Finding("disk free here", f"{free / 2**30:.1f} GiB", "", ""),
    ]


def _extra(name: str) -> str:
    return f"{_PIP} -e '.[{name}]'"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _tool_version(command: str) -> str | None:
    if shutil.which(command) is None:
        return None
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=20, check=False)
    words = (answer.stdout or answer.stderr).strip().split("\n")[0]
    if answer.returncode != 0:
        return f"present, but does not run here: {words or f'exit code {answer.returncode}'}"
    return words or "present, gives no version"
