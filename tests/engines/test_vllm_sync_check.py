"""`megarl sync-check` with a real vLLM: in step by every transport, or exit code 1 and the tensor's name."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megarl.config.schema import Recipe
from megarl.loop import sync_check as command
from megarl.rollout.engine import ServedEngine
from megarl.rollout.fleet import Fleet
from megarl.sync import push
from megarl.sync.senders import build_sender
from megarl.sync.transport import Sender
from tests.engines.faulty import Change, FaultySender, altered, swapped
from tests.runs import RECIPE, REPOSITORY, environment

pytestmark = pytest.mark.vllm

TRANSPORTS = ("shared_memory", "disk", "broadcast")
LAYER = "model.layers.1."
QUERY, GATE, UP = f"{LAYER}self_attn.q_proj.weight", f"{LAYER}mlp.gate_proj.weight", f"{LAYER}mlp.up_proj.weight"


def test_a_trainer_of_four_ranks_is_in_step_by_every_transport(tmp_path: Path) -> None:
    """The command itself, which starts tp2 x pp2 and a server, and leaves neither."""
    layout = ("parallel.world_size=4", "parallel.tensor=2", "parallel.pipeline=2")
    engine = ("rollout.engine=vllm", "sync.bucket_mib=1", "engine.start_timeout_s=400")
    folder = tmp_path / "run"
    ran = subprocess.run(
        [sys.executable, "-m", "megarl", "sync-check", RECIPE, f"output_dir={folder}", *layout, *engine],
        cwd=REPOSITORY,
        env=environment(COLUMNS="120"),
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [line.split()[0] for line in ran.stdout.splitlines() if line.strip().startswith(TRANSPORTS)] == [*TRANSPORTS]
    assert ran.stdout.rstrip().endswith("In step.")
    assert not folder.exists()


@pytest.fixture
def checked(recipe: Recipe, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """The command is given the session's server in place of the one that it would start."""

    @contextmanager
    def engine(recipe: Recipe, vocab_size: int, *, is_main: bool) -> Iterator[Fleet]:
        yield fleet

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(command, "engine_of", engine)
    return recipe


def plant(monkeypatch: pytest.MonkeyPatch, transport: str, **fault: Any) -> None:
    def faulty(recipe: Recipe, engine: ServedEngine) -> Sender:
        sender = build_sender(recipe, engine)
        return FaultySender(sender, **fault) if recipe.sync.transport == transport else sender

    monkeypatch.setattr(push, "build_sender", faulty)


@pytest.mark.parametrize("delta", [False, True], ids=["whole", "delta"])
def test_one_rank_is_in_step_by_every_transport(checked: Recipe, delta: bool, capsys: pytest.CaptureFixture) -> None:
    assert command.sync_check(replace(checked, sync=replace(checked.sync, delta=delta))) == 0
    shown = capsys.readouterr().out
    ways = [line.split("  ")[0] for line in map(str.strip, shown.splitlines()) if line.startswith(TRANSPORTS)]
    assert ways == [f"{name}{kind}" for name in TRANSPORTS for kind in ("", ", delta")[: 1 + delta]]
    assert shown.rstrip().endswith("In step.")


CHANGES: dict[str, tuple[str, Change, str]] = {
    "swapped": ("disk", swapped(GATE, UP), f"the engine was given the bytes of {UP} under this name"),
    "transposed": ("broadcast", altered(QUERY, lambda tensor: tensor.T.contiguous()), "it was transposed on the way"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_tensor_that_changes_on_the_way(
    case: str, checked: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    transport, change, cause = CHANGES[case]
    plant(monkeypatch, transport, change=change)
    assert command.sync_check(checked) == 1
    shown = capsys.readouterr().out
    name = GATE if case == "swapped" else QUERY
    assert f"megarl: error: {name} did not arrive as it was sent" in shown and cause in shown
    # what went well before is shown, and nothing says that all is
    assert "shared_memory" in shown and "In step." not in shown


def test_a_tensor_that_is_not_sent(
    checked: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    plant(monkeypatch, "shared_memory", left_out=frozenset({UP}))
    assert command.sync_check(checked) == 1
    assert f"{UP} did not arrive as it was sent" in capsys.readouterr().out
