"""From a recipe to what the arithmetic is over: the one place here that reads recipe keys."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from megarl.config.model import ParallelConfig, TokenizerConfig
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.plan.memory import Beside, Engine
from megarl.plan.shape import Batch, Layout, Numerics, Recompute, Shape

# the families' own files say so too, in a layer above this one; a test holds them equal
_WITH_QKV_BIAS, _WITH_QK_NORM = ("qwen2",), ("qwen3", "qwen3_moe")
_SPECIAL_TOKENS = 2
"""Padding and end, of the character tokenizer."""


def shape_of(recipe: Recipe, vocab: int) -> Shape:
    """The policy."""
    model = recipe.model
    return Shape(
        layers=model.num_layers,
        hidden=model.hidden_size,
        ffn=model.ffn_hidden_size,
        heads=model.num_attention_heads,
        groups=model.num_query_groups,
        head_dim=model.head_dim,
        vocab=vocab,
        tied=model.tie_embeddings,
        qkv_bias=model.family in _WITH_QKV_BIAS,
        qk_norm=model.family in _WITH_QK_NORM,
        experts=model.moe.num_experts,
        experts_per_token=model.moe.experts_per_token,
        expert_ffn=model.moe.ffn_hidden_size,
        dense_layers=tuple(model.moe.dense_layers),
    )


def layout_of(recipe: Recipe) -> Layout:
    """The trainer's ranks."""
    parallel = recipe.parallel
    return Layout(
        world=parallel.world_size,
        tensor=parallel.tensor,
        sequence=parallel.sequence,
        pipeline=parallel.pipeline,
        virtual=parallel.virtual,
        context=parallel.context,
        expert=parallel.expert,
        expert_tensor=parallel.expert_tensor_size,
        distributed_optimizer=parallel.distributed_optimizer,
        stage_layers=_layers_by_rank(parallel),
    )


def _layers_by_rank(parallel: ParallelConfig) -> tuple[int, ...] | None:
    """Layers of each pipeline rank, which holds every stage whose number is its own modulo their count."""
    given = parallel.pipeline_layers
    return None if given is None else tuple(sum(given[rank :: parallel.pipeline]) for rank in range(parallel.pipeline))


def numerics_of(recipe: Recipe) -> Numerics:
    """The bytes of the recipe's dtype. Norms are counted as the local ones."""
    recompute: dict[str, Recompute] = {"none": "none", "selective": "core_attention", "full": "full"}
    precision = recipe.precision
    return Numerics(
        compute=4 if precision.dtype == "fp32" else 2,
        fp32_head=precision.fp32_head,
        fp32_residual=precision.fp32_residual,
        recompute=recompute[recipe.parallel.recompute],
    )


def vocabulary(config: TokenizerConfig) -> int:
    """Tokens of the recipe's tokenizer, read without loading it.

    Raises:
        RecipeError: the folder holds no tokenizer.json that says.
    """
    if config.kind == "characters":
        return _SPECIAL_TOKENS + len(config.alphabet) + len(config.words)
    path = Path(config.path or "") / "tokenizer.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        # a mapping of tokens to ids; a unigram model has a list
        tokens = tree["model"]["vocab"]
        texts = set(tokens) if isinstance(tokens, dict) else {token for token, _ in tokens}
        return len(texts | {token["content"] for token in tree.get("added_tokens", ())})
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        reason = "holds no tokenizer.json whose tokens can be counted"
        raise refusal("tokenizer.path", config.path, reason, "give the number of tokens by --vocab-size") from error


def phases_of(recipe: Recipe) -> Iterator[tuple[str, Batch, Beside]]:
    """The phases that train, each with its micro-batches and with what lives beside the policy.

    Sequences are taken to be as long as the context allows.

    Raises:
        RecipeError: no phase trains.
    """
    sft, rl = recipe.sft, recipe.rl
    if sft.steps == 0 and rl.steps == 0:
        raise refusal("rl.steps", 0, "trains nothing, as sft.steps is 0 too", "set one of the two above 0 to plan it")
    engine = _engine(recipe)
    if sft.steps > 0:
        batch = _batch(recipe, sft.batch_size, sft.micro_batch_size, sft.micro_batch_tokens, None)
        yield "sft", batch, Beside(engine=engine)
    if rl.steps > 0:
        responses = rl.rollouts_per_step // rl.updates_per_step
        longest = recipe.rollout.max_new_tokens
        batch = _batch(recipe, responses, rl.micro_batch_size, rl.micro_batch_tokens, longest)
        beside = Beside(
            reference=rl.measure_reference or rl.kl.coefficient > 0,
            reference_hidden=rl.kl.estimator == "full" and rl.kl.coefficient > 0,
            critic=rl.advantage == "gae",
            engine=engine,
        )
        yield "rl", batch, beside


def _batch(recipe: Recipe, sequences: int, size: int, budget: int | None, longest_trained: int | None) -> Batch:
    """The micro-batches of an update of so many sequences; all their tokens are trained on, or so many of each."""
    parallel = recipe.parallel
    multiple = parallel.token_multiple(recipe.precision.fp8.alignment)
    # the last token is predicted, not read
    longest = math.ceil((recipe.model.max_position_embeddings - 1) / multiple) * multiple
    if budget is not None:
        tokens = budget * parallel.context // multiple * multiple
        count = math.ceil(sequences / (parallel.data * max(1, tokens // longest)))
        return Batch(1, tokens, longest, trained=tokens // parallel.context, count=count, packed=True)
    own = size * longest // parallel.context
    trained = own if longest_trained is None else min(own, size * longest_trained)
    return Batch(size, longest, longest, trained=trained, count=sequences // (parallel.data * size))


def _engine(recipe: Recipe) -> Engine | None:
    """The embedded engine at its largest batch, of training or of evaluation; servers have GPUs of their own."""
    if recipe.rollout.engine != "embedded":
        return None
    context = recipe.model.max_position_embeddings
    asked = [recipe.rl.rollouts_per_step] if recipe.rl.steps > 0 else []
    asked.append(recipe.data.eval_prompts * recipe.evaluate.samples_per_prompt)
    rows = min(recipe.rollout.max_batch_size, math.ceil(max(asked) / recipe.parallel.world_size))
    prompt = context - recipe.rollout.max_new_tokens
    return Engine(rows=rows, tokens=context, prompt=prompt)
