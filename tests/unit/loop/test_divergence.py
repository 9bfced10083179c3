"""Updates without finite numbers: counted by model, told, and after some in a row the end."""

from pathlib import Path
from typing import Any

import pytest

from megarl.checkpoint.state import RunState
from megarl.checkpoint.store import CheckpointStore
from megarl.config.errors import DivergedError
from megarl.config.faults import FaultsConfig
from megarl.config.schema import Recipe
from megarl.loop.divergence import count_nonfinite
from megarl.loop.save import Save
from megarl.megatron.schedule import Update
from megarl.megatron.world import Layout
from tests.unit.loop.parts import run_without_parts

GOOD = Update(8, 1.0, 1.0, 0.1, {})
BAD = Update(8, float("nan"), float("nan"), 0.1, {}, skipped=True, nonfinite=True)
EMPTY = Update(0, 0.0, 0.0, 0.1, {})


class Notes(list[str]):
    """A journal that keeps its lines."""

    note = list.append


def test_a_good_update_sets_the_count_back_and_an_empty_one_does_not() -> None:
    journal: Any = Notes()
    run = run_without_parts(Recipe(faults=FaultsConfig(nonfinite_updates=3)), journal=journal)
    for update in (BAD, BAD, GOOD, BAD, EMPTY, BAD):
        count_nonfinite(run, update)
    # another model's count is its own
    count_nonfinite(run, GOOD, "critic")
    assert run.state.nonfinite_updates == {"policy": 2}
    assert len(journal) == 4 and "not finite (loss nan); it was skipped, 2 in a row" in journal[-1]
    with pytest.raises(DivergedError, match=r"step 1: .* as that of faults\.nonfinite_updates=3 updates in a row; "):
        count_nonfinite(run, BAD)


def test_a_save_that_was_begun_is_completed_first(tmp_path: Path) -> None:
    layout, store, state = Layout(0, 1, 0, 1, True, True), CheckpointStore(tmp_path, 1), RunState(phase="rl", step=4)
    run = run_without_parts(Recipe(faults=FaultsConfig(nonfinite_updates=1)), layout=layout, store=store)
    (store.begin() / "weights.bin").write_bytes(b"weights")
    begun = Save(store, state, {}, parts=[], more=lambda: None, is_main=True, in_background=True)
    begun.write()
    run.saver._pending = begun
    with pytest.raises(DivergedError):
        count_nonfinite(run, BAD)
    found = store.newest()
    assert found is not None and found[1]["state"]["step"] == 4 and not run.saver.is_writing
