"""What `megarl drift measure` does: the engine generates, both sides score, and experiments name what differs."""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from megarl.config.errors import DataError
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.data.registry import build_source
from megarl.data.tokenizer import build_tokenizer, encode
from megarl.diagnose.asked_again import AskedAgain
from megarl.diagnose.show import show
from megarl.diagnose.transformers_model import TransformersModel, built_from, trainer_dtype
from megarl.drift.diagnosis import Rollouts, Sampling, diagnose
from megarl.loop.engines import engine_of
from megarl.megatron.batch import on_targets, pad_batch
from megarl.megatron.hf_folder import saved_weights
from megarl.megatron.policy import FrozenModel
from megarl.megatron.weights import random_weights
from megarl.megatron.world import join_world, leave_world
from megarl.platform.platform import current
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.types import Completion, Request, SamplingParams
from megarl.sync.push import LocalSync, ServedSync

_STREAM = "drift-measure"


@dataclass(frozen=True)
class Asked:
    """What the command line says beside the recipe.

    Attributes:
        prompts: a file with a prompt a line, as text or as JSON with the recipe's prompt column; None for the recipe's
            own training prompts.
        responses: to generate.
        temperature: that the engine is asked for where it is not the recipe's; likewise the next two.
        top_p: see there.
        top_k: see there.
    """

    prompts: Path | None
    responses: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


def measure(recipe: Recipe, asked: Asked) -> int:
    """Prints the drift, its floor and its causes.

    Args:
        recipe: its model, engine and precision are measured; nothing is trained, and its folder is not touched.
        asked: the rest.

    Returns:
        0, or 1 where a cause was found.

    Raises:
        UserError: more than one process is asked for, or the prompts cannot be read.
    """
    if recipe.parallel.world_size > 1:
        raise refusal(
            "parallel.world_size", recipe.parallel.world_size, "is more than drift measure runs", "set it to 1"
        )
    tokenizer = build_tokenizer(recipe.tokenizer)
    prompts = _prompts(recipe, asked, lambda text: encode(tokenizer, text))
    layout = join_world(recipe.parallel, recipe.seed, recipe.precision.fp8.alignment)
    init = recipe.model.init_from
    with tempfile.TemporaryDirectory(prefix="megarl-measure-") as folder:
        own = replace(recipe, output_dir=folder)
        with engine_of(own, len(tokenizer), is_main=True) as engine:
            assert engine is not None
            policy = FrozenModel(own, layout, len(tokenizer))
            policy.load(
                random_weights(recipe.model, len(tokenizer), recipe.seed) if init is None else saved_weights(Path(init))
            )
            sync = LocalSync(policy, engine) if isinstance(engine, EmbeddedEngine) else ServedSync(own, policy, engine)
            sync.push(0)
            sampling = _sampling(recipe, asked, tokenizer.eos_token_id)
            requests = [Request(str(number), 0, prompt, _STREAM) for number, prompt in enumerate(prompts)]
            completions = engine.generate(requests, sampling)
            rollouts = _rollouts(policy, completions, sampling.stop_token_id)
            begin = tokenizer.bos_token_id
            model = TransformersModel(
                [built_from(own, len(tokenizer), policy.export())],
                trainer_dtype(recipe),
                openers=() if begin is None else ((begin,), (begin, begin)),
                head="fp32" if recipe.precision.fp32_head else None,
                residual="fp32" if recipe.precision.fp32_residual else None,
            )
            diagnosis = diagnose(rollouts, model, AskedAgain(engine, requests, completions, sampling))
            sync.close()
    leave_world()
    show(diagnosis)
    return 1 if diagnosis.findings else 0


def _sampling(recipe: Recipe, asked: Asked, stop_token_id: int) -> SamplingParams:
    own = recipe.rollout
    return SamplingParams(
        own.temperature if asked.temperature is None else asked.temperature,
        own.max_new_tokens,
        stop_token_id,
        top_p=own.top_p if asked.top_p is None else asked.top_p,
        top_k=own.top_k if asked.top_k is None else asked.top_k,
    )


def _prompts(recipe: Recipe, asked: Asked, encoded: Callable[[str], list[int]]) -> list[tuple[int, ...]]:
    if asked.prompts is None:
        source = build_source(recipe)
        texts = [source.training(number).prompt for number in range(asked.responses)]
    else:
        lines = _lines(asked.prompts, recipe.data.prompt_column)
        texts = [lines[number % len(lines)] for number in range(asked.responses)]
    return [tuple(encoded(text)) for text in texts]


def _lines(file: Path, column: str) -> list[str]:
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        if file.suffix == ".jsonl":
            lines = [json.loads(line)[column] for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"--prompts={file} cannot be read ({error}); give a prompt a line, or JSONL.") from error
    if not lines or not all(isinstance(line, str) for line in lines):
        raise DataError(f"--prompts={file} holds no prompts; give a prompt a line, or JSONL with {column}.")
    return lines


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
