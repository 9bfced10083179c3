"""Runs a rendered script where SLURM's commands are stubs that note what they are given."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SHELLCHECK = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))

_STUB = """#!{python} -P
import json, os, pathlib, signal, sys, time
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "scontrol":
    print("n1\\nn2" if "hostnames" in words else "")
else:
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(json.dumps([name, words, os.environ.get("HOSTILE")]) + "\\n")
if name == "srun" and "health" in words:
    print(json.dumps({{"node": "n1", "complaint": None}}))
    print(json.dumps({{"node": "n2", "complaint": None}}))
if name == "srun" and "serve" in words:
    folder = pathlib.Path(words[words.index("--announce") + 1])
    (folder / "n2.url").write_text("http://n2:1")
    if "DIES" not in os.environ:
        signal.pause()
    # when the trainer is under way
    while not pathlib.Path(os.environ["CALLS"] + ".trains").exists():
        time.sleep(0.01)
    (folder / "n2.ended").write_text("the server ended with code 9; its log ends with\\n  no memory is left")
    sys.exit(9)
if name == "srun" and "train" in words and "DIES" in os.environ:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(138))
    pathlib.Path(os.environ["CALLS"] + ".trains").touch()
    while True:
        signal.pause()
"""


def complaints(text: str, folder: Path, *options: str) -> str:
    """What shellcheck says of a script."""
    (folder / "job.sbatch").write_text(text)
    command = [SHELLCHECK, *options, str(folder / "job.sbatch")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def run_with_stubs(text: str, folder: Path) -> list[tuple[str, list[str], str | None]]:
    """Runs a script in `folder`; every call of srun and module: the command, its words, and the variable HOSTILE."""
    done = ended_with_stubs(text, folder)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in (folder / "calls").read_text().splitlines()]


def ended_with_stubs(text: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in `folder`. Args: more: variables; DIES has the servers end once the trainer has begun."""
    stubs = folder / "stubs"
    stubs.mkdir()
    for name in ("srun", "scontrol", "squeue", "module"):
        (stubs / name).write_text(_STUB.format(python=sys.executable))
        (stubs / name).chmod(0o755)
    (folder / "job.sbatch").write_text(text)
    calls = folder / "calls"
    names = ("JOB_ID", "JOB_NODELIST", "ARRAY_TASK_ID", "JOB_NODELIST_HET_GROUP_0", "JOB_NODELIST_HET_GROUP_1")
    environment = {
        **os.environ,
        "PATH": f"{stubs}:{os.environ['PATH']}",
        "CALLS": str(calls),
        **{f"SLURM_{name}": "1" for name in names},
        **more,
    }
    return subprocess.run(
        ["bash", str(folder / "job.sbatch")], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
