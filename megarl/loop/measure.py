"""What `megarl drift measure` does: the engine generates, both sides score, and experiments name what differs."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.data.tokenizer import build_tokenizer, encode
from megarl.diagnose.asked_again import AskedAgain
from megarl.diagnose.load import load_model
from megarl.diagnose.show import show
from megarl.diagnose.transformers_model import TransformersModel, built_from, trainer_dtype
from megarl.drift.diagnosis import Diagnosis, Rollouts, Sampling, diagnose
from megarl.loop.engines import engine_of, running_servers
from megarl.loop.measured_prompts import Asked
from megarl.megatron.batch import on_targets, pad_batch
from megarl.megatron.hf_folder import saved_weights
from megarl.megatron.policy import FrozenModel
from megarl.megatron.weights import random_weights
from megarl.megatron.world import Layout, join_world, leave_world
from megarl.platform.platform import current
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.engine import WeightsError
from megarl.rollout.fleet import Fleet
from megarl.rollout.types import Completion, Request
from megarl.sync.push import LocalSync, ServedSync


def measure(recipe: Recipe, asked: Asked) -> int:
    """Prints the drift, its floor and its causes.

    Args:
        recipe: its model, engine and precision are measured; nothing is trained, and its folder is not touched.
        asked: the rest.

    Returns:
        0, or 1 where a cause was found.

    Raises:
        UserError: more than one process is asked for, the prompts or the older weights cannot be read, or a running
            server is not there or has other settings.
    """
    if recipe.parallel.world_size > 1:
        raise refusal(
            "parallel.world_size", recipe.parallel.world_size, "is more than drift measure runs", "set it to 1"
        )
    tokenizer = build_tokenizer(recipe.tokenizer)
    requests = asked.requests(recipe, lambda text: encode(tokenizer, text))
    older = [load_model(folder, trainer_dtype(recipe), "--older") for folder in asked.older]
    layout = join_world(recipe.parallel, recipe.seed, recipe.precision.fp8.alignment)
    try:
        with running_servers(recipe, "measured"):
            diagnosis = _measured(recipe, asked, requests, older, layout)
    except WeightsError as error:
        print(f"The engine does not have the trainer's weights: {error}.")
        return 1
    finally:
        leave_world()
    show(diagnosis)
    return 1 if diagnosis.findings else 0


def _measured(
    recipe: Recipe, asked: Asked, requests: Sequence[Request], older: Sequence[Any], layout: Layout
) -> Diagnosis:
    tokenizer, init = build_tokenizer(recipe.tokenizer), recipe.model.init_from
    with tempfile.TemporaryDirectory(prefix="megarl-measure-") as folder:
        own = replace(recipe, output_dir=folder)
        with engine_of(own, len(tokenizer), is_main=True) as engine:
            assert engine is not None
            policy = FrozenModel(own, layout, len(tokenizer))
            policy.load(
                random_weights(recipe.model, len(tokenizer), recipe.seed) if init is None else saved_weights(Path(init))
            )
            _give_weights(own, policy, engine, keep=asked.keep_weights)
            sampling = asked.sampling(recipe, tokenizer.eos_token_id)
            completions = engine.generate(requests, sampling)
            rollouts = _rollouts(policy, completions, sampling.stop_token_id)
            begin = tokenizer.bos_token_id
            model = TransformersModel(
                [built_from(own, len(tokenizer), policy.export()), *older],
                trainer_dtype(recipe),
                openers=() if begin is None else ((begin,), (begin, begin)),
                head="fp32" if recipe.precision.fp32_head else None,
                residual="fp32" if recipe.precision.fp32_residual else None,
            )
            return diagnose(rollouts, model, AskedAgain(engine, requests, completions, sampling))


def _give_weights(recipe: Recipe, policy: FrozenModel, engine: EmbeddedEngine | Fleet, *, keep: bool) -> None:
    if isinstance(engine, EmbeddedEngine):
        LocalSync(policy, engine).push(0)
    elif keep:
        engine.revive()
    else:
        sync = ServedSync(recipe, policy, engine)
        try:
            sync.push(0)
        finally:
            sync.close()


def _rollouts(policy: FrozenModel, completions: Sequence[Completion], stop_token_id: int) -> Rollouts:
    """Both sides' log-probs, the trainer's by Megatron."""
    answered = [completion for completion in completions if completion.token_ids]
    prompts = [completion.request.prompt_ids for completion in answered]
    responses = [completion.token_ids for completion in answered]
    batch = pad_batch(prompts, responses, current().device)
    trainer_BT = policy.log_probs(batch, 1)
    engine_BT = on_targets(batch, [completion.log_probs for completion in answered])
    own = policy.recipe.rollout
    ends = [len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True)]
    ids_BT = torch.cat([batch.tokens_BT[:, :1], batch.targets_BT], dim=1).cpu()
    return Rollouts(
        ids_BT,
        torch.tensor(list(map(len, prompts))),
        torch.tensor(ends),
        _at_tokens(engine_BT),
        _at_tokens(trainer_BT),
        Sampling(own.temperature, own.top_p, own.top_k),
        stop_token_id,
    )


def _at_tokens(on_targets_BT: Tensor) -> Tensor:
    """From where a token is predicted to where it stands."""
    return torch.nn.functional.pad(on_targets_BT.double().cpu(), (1, 0), value=float("nan"))
