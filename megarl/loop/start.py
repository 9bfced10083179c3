"""Brings a built run to where it starts: fresh weights, or the newest checkpoint that is whole."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from megarl.checkpoint.hf import export_hf
from megarl.checkpoint.manifest import why_not_resumed
from megarl.checkpoint.responses import load_responses
from megarl.checkpoint.state import Phase, RunState
from megarl.checkpoint.tensors import load_tensors, seed_generators
from megarl.config.errors import RunFolderError
from megarl.config.load import recipe_from_tree
from megarl.config.resume import changes, listed
from megarl.loop.folder import writing_to
from megarl.loop.inputs import check_inputs
from megarl.loop.run import Run
from megarl.loop.software import note_other_libraries
from megarl.megatron.critic import Critic
from megarl.megatron.hf_folder import saved_weights
from megarl.megatron.policy import FrozenModel
from megarl.megatron.weights import ReadTensor, random_weights
from megarl.platform.fp8.linear import delayed_scales

_RANKS = ("world_size", "tensor", "pipeline", "virtual", "pipeline_layers", "context", "expert", "expert_tensor")
"""Of `parallel`: what decides which rank holds what."""

REFERENCE = "reference"
"""Folder of the policy that RL started from, in Hugging Face layout."""


def start(run: Run) -> None:
    """Loads weights, optimizer, RNG and state. Collective.

    Raises:
        RunFolderError: checkpoints are there and none is whole; resume=must and there is none; or the run's data or
            tokenizer are others than they were. On every rank.
    """
    found = _found_by_main(run)
    if found is None:
        run.policy.load(initial_weights(run))
        phase: Phase = "sft" if run.recipe.sft.steps > 0 else "rl"
        rl = run.recipe.rl
        clip_high = rl.objective.clip_high if rl.entropy.alarm_action == "raise_clip" else None
        run.state = RunState(phase=phase, kl_coefficient=rl.kl.coefficient, clip_high=clip_high)
        begin_phase(run)
    else:
        path, manifest = found
        run.state = RunState(**manifest["state"])
        if run.layout.is_main:
            run.state.awaited = load_responses(path)
        begin_phase(run)
        _load_trainees(run, path, manifest)
        run.saved = run.state.as_dict()
        run.journal.note(f"resumed from {path}")
        _note_changes(run, manifest)
        note_other_libraries(run, manifest)
        # a checkpoint of an older release tells nothing of it
        run.engine_before = manifest.get("engine", run.engine_before)
    run.journal.rewind(run.state)


def _found_by_main(run: Run) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole checkpoint. One rank looks: another could see a folder that is being renamed."""
    found: list[Any] = [None]
    if run.layout.is_main:
        try:
            with writing_to(run.recipe.output_dir, "the name of a checkpoint again that a killed save had moved"):
                run.store.recover()
            found[0] = newest = run.store.newest(partial(why_not_resumed, recipe=run.recipe))
            if newest is not None:
                check_inputs(run, newest[1])
            if found[0] is None and run.recipe.resume == "must":
                raise RunFolderError(
                    f"resume=must, but {run.folder} holds no checkpoint; set resume=auto to start anew."
                )
        except RunFolderError as error:
            found[0] = error
    if run.layout.world_size > 1:
        dist.broadcast_object_list(found)
    if isinstance(found[0], RunFolderError):
        raise found[0]
    return found[0]  # type: ignore[no-any-return]


def _load_trainees(run: Run, path: Path, manifest: dict[str, Any]) -> None:
    """Fills the trainees, and each rank's generators: from its own file, or by rule where the ranks are others."""
    before, now = asdict(recipe_from_tree(manifest["recipe"]).parallel), asdict(run.recipe.parallel)
    laid_out_anew = any(before[name] != now[name] for name in _RANKS)
    if laid_out_anew and any(delayed_scales(run.policy.models)):
        names = [name for name in _RANKS if before[name] != now[name]]
        changed = ", ".join(f"parallel.{name} {before[name]} -> {now[name]}" for name in names)
        raise RunFolderError(
            f"{path} cannot be resumed in another layout ({changed}), as the histories of emulated delayed scaling "
            "belong to ranks; give the layout that it was saved in."
        )
    for name, trainee in run.trainees.items():
        with_rng = trainee is run.policy and not laid_out_anew
        load_tensors(trainee, path, with_optimizer=manifest["optimizers"][name], name=name, with_rng=with_rng)
    if laid_out_anew:
        seed_generators(f"{run.recipe.seed}/resumed/{run.state.folder_name}", run.layout)


def _note_changes(run: Run, manifest: dict[str, Any]) -> None:
    """What the recipe has otherwise than the one that saved, of what it may."""
    found = changes(asdict(recipe_from_tree(manifest["recipe"])), asdict(run.recipe))
    if found.layout:
        run.journal.note(f"changed since: {listed(found.layout)}; from here on the numbers agree up to rounding")
    if found.free:
        run.journal.note(f"changed since: {listed(found.free)}")


def begin_phase(run: Run) -> None:
    """Gives the policy the phase's optimizer and schedule; a run that is done keeps RL's, to load it."""
    if run.state.phase == "sft":
        run.policy.start_phase(run.recipe.sft.optimizer, run.recipe.sft.steps)
    else:
        rl = run.recipe.rl
        run.policy.start_phase(rl.optimizer, (rl.steps - rl.critic.warmup_steps) * rl.updates_per_step)
        if rl.advantage == "gae":
            run.critic = Critic(run.recipe, run.layout, run.policy.vocab_size)
            run.critic.start_phase(rl.critic.optimizer, rl.steps * rl.updates_per_step)


def initial_weights(run: Run) -> ReadTensor:
    """The weights that training starts from: `model.init_from`, or a random initialisation keyed by the seed."""
    model = run.recipe.model
    if model.init_from is not None:
        return saved_weights(Path(model.init_from))
    return random_weights(model, run.policy.vocab_size, run.recipe.seed)


def begin_reference(run: Run) -> None:
    """Builds the reference policy, and fills the critic, from the weights that RL starts with. Collective.

    They are written once, before the first RL step, so that a resumed run compares with the same policy.
    """
    kl = run.recipe.rl.kl
    wanted = run.recipe.rl.measure_reference or kl.coefficient > 0
    wanted = wanted or "reference_log_probs_BT" in run.objective.needs
    folder = run.folder / REFERENCE
    if run.state.step == 0 and (wanted or run.critic is not None):
        with writing_to(run.recipe.output_dir, "the reference policy"):
            export_hf(run.policy, folder, run.tokenizer)
    if run.state.step == 0 and run.critic is not None:
        # the policy's body is the best start there is for reading its own states
        run.critic.load(saved_weights(folder))
    if not wanted:
        return
    run.reference = FrozenModel(run.recipe, run.layout, run.policy.vocab_size)
    run.reference.load(saved_weights(folder))
