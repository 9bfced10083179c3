"""Whether a node can be used: asked on each before a run starts."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

_COMMAND_S = 60.0
_NO_ANSWER = "it did not answer"


@dataclass(frozen=True)
class Answer:
    """What one node said.

    Attributes:
        node: its name.
        complaint: what is wrong; None where nothing is.
    """

    node: str
    complaint: str | None

    @staticmethod
    def parse(line: str) -> "Answer | None":
        """The answer in one line of a step's output; None where the line is something else."""
        try:
            held = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(held, dict) or not isinstance(held.get("node"), str) or "complaint" not in held:
            return None
        return Answer(held["node"], held["complaint"])


def bad_nodes(nodes: Sequence[str], answers: Sequence[Answer]) -> dict[str, str] | None:
    """The nodes that cannot be used, each with the reason; None where no node answered, which says nothing of any.

    Args:
        nodes: all of the job's.
        answers: of those that answered in time.
    """
    told = {answer.node: answer.complaint for answer in answers if answer.node in nodes}
    if not told:
        return None
    reasons = {node: told.get(node, _NO_ANSWER) for node in nodes}
    return {node: reason for node, reason in reasons.items() if reason is not None}


def complaint(free_gib: float, gpus: int, command: Sequence[str]) -> str | None:
    """What is wrong with this node; None where nothing is.

    Args:
        free_gib: least free space in its temporary folder, in GiB.
        gpus: GPUs that it must have.
        command: a program and its arguments that must end with 0; none where it is empty.
    """
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"written")
            file.flush()
    except OSError as error:
        return f"{tempfile.gettempdir()} cannot be written ({error.strerror})"
    free = shutil.disk_usage(tempfile.gettempdir()).free / 2**30
    if free < free_gib:
        return f"{tempfile.gettempdir()} has {free:.1f} GiB free, less than health.free_gib={free_gib:g}"
    if gpus:
        code, output = _ran(["nvidia-smi", "--list-gpus"])
        seen = sum(line.startswith("GPU ") for line in output.splitlines())
        if code != 0 or seen < gpus:
            return f"nvidia-smi lists {seen} of {gpus} GPUs{_last(output)}"
    if command:
        code, output = _ran(command)
        if code != 0:
            return f"health.command ended with {code}{_last(output)}"
    return None


def _ran(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and output; 127 where the program is not there, 124 where it takes longer than a minute."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMMAND_S,
            check=False,
        )
    except OSError as error:
        return 127, str(error)
    except subprocess.TimeoutExpired:
        return 124, f"it took longer than {_COMMAND_S:g} s"
    return done.returncode, done.stdout.decode(errors="replace")


def _last(output: str) -> str:
    lines = output.strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""
