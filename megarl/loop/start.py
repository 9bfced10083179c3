"""Brings a built run to where it starts: fresh weights, or the newest checkpoint that is whole."""

from pathlib import Path

import torch.distributed as dist

from megarl.checkpoint.hf import export_hf
from megarl.checkpoint.state import RunState
from megarl.checkpoint.tensors import load_tensors
from megarl.loop.run import Run
from megarl.megatron.policy import FrozenModel
from megarl.megatron.weights import ReadTensor, random_weights, saved_weights

REFERENCE = "reference"
"""Folder of the policy that RL started from, in Hugging Face layout."""


def start(run: Run) -> None:
    """Loads weights, optimizer, RNG and state. Collective."""
    found = [run.store.newest() if run.layout.is_main else None]
    if run.layout.world_size > 1:
        # one rank decides: another could see a folder that is being renamed
        dist.broadcast_object_list(found)
    if found[0] is None:
        run.policy.load(initial_weights(run))
        run.state = RunState(phase="sft" if run.recipe.sft.steps > 0 else "rl")
        begin_phase(run)
    else:
        path, manifest = found[0]
        run.state = RunState(**manifest["state"])
        begin_phase(run)
        load_tensors(run.policy, path)
        run.saved = run.state.folder_name
        run.journal.note(f"resumed from {path}")
    run.journal.rewind(run.state)


def begin_phase(run: Run) -> None:
    """Gives the policy the phase's optimizer and schedule; a run that is done keeps RL's, to load it."""
    if run.state.phase == "sft":
        run.policy.start_phase(run.recipe.sft.optimizer, run.recipe.sft.steps)
    else:
        rl = run.recipe.rl
        run.policy.start_phase(rl.optimizer, rl.steps * rl.updates_per_step)


def initial_weights(run: Run) -> ReadTensor:
    """The weights that training starts from: `model.init_from`, or a random initialisation keyed by the seed."""
    model = run.recipe.model
    if model.init_from is not None:
        return saved_weights(Path(model.init_from))
    return random_weights(model, run.policy.vocab_size, run.recipe.seed)


def begin_reference(run: Run) -> None:
    """Builds the reference policy where the recipe wants one, from the weights that RL starts with. Collective.

    They are written once, before the first RL step, so that a resumed run compares with the same policy.
    """
    if not (run.recipe.rl.measure_reference or run.objective.needs_reference):
        return
    folder = run.folder / REFERENCE
    if run.state.step == 0:
        export_hf(run.policy, folder, run.token_ids)
    run.reference = FrozenModel(run.recipe, run.layout, run.policy.vocab_size)
    run.reference.load(saved_weights(folder))
