"""A transformers model that computes log-probs in every way that an experiment may ask for."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from megarl.config.schema import Recipe
from megarl.diagnose.caches import Recorder, Replacer
from megarl.diagnose.layout import LaidOut, Layouts
from megarl.diagnose.rounded_linear import rounding
from megarl.diagnose.routers import routed, routers
from megarl.drift.diagnosis.computation import Computation, Dtype
from megarl.drift.diagnosis.rollouts import Rollouts
from megarl.drift.diagnosis.side import Traits
from megarl.megatron.models import FAMILIES
from megarl.rollout.hf_parameters import published_parameters
from megarl.sync.digest import digest

DTYPES: dict[Dtype, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class TransformersModel:
    """Implements `megarl.drift.diagnosis.side.Model` on a decoder of transformers (Llama, Qwen2, Qwen3, Qwen3-MoE).

    It runs the model's own layers one by one, with its own mask and positions, so that each switch is in one place.
    """

    def __init__(
        self,
        versions: Sequence[Any],
        dtype: Dtype,
        openers: Sequence[tuple[int, ...]] = (),
        *,
        head: Dtype | None = None,
        residual: Dtype | None = None,
    ) -> None:
        """A model and what it was before.

        Args:
            versions: models, the newest first, all in `dtype`.
            dtype: the trainer's.
            openers: see `Traits`.
            head: dtype of the trainer's output layer; None for `dtype`.
            residual: of its residual stream, likewise.
        """
        self._versions, self._dtype, self._openers = list(versions), dtype, tuple(openers)
        self._head, self._residual = head or dtype, residual or dtype
        self._copies: dict[tuple[int, Dtype], Any] = {}
        self._layouts = Layouts()

    @property
    def traits(self) -> Traits:
        """See `Model`."""
        config = self._versions[0].config
        first = next(iter(routers(self._versions[0])), None)
        return Traits(
            dtype=self._dtype,
            head=self._head,
            residual=self._residual,
            layers=config.num_hidden_layers,
            tied=config.tie_word_embeddings,
            rope_theta=config.rope_parameters["rope_theta"],
            experts=0 if first is None else config.num_experts,
            experts_per_token=0 if first is None else first.top_k,
            renormalise=first is None or first.norm_topk_prob,
            ages=len(self._versions) - 1,
            openers=self._openers,
        )

    def digests(self) -> Mapping[str, str]:
        """See `Model`."""
        return {name: digest(tensor) for name, tensor in published_parameters(self._versions[0]).items()}

    @torch.no_grad()
    def logits(self, rollouts: Rollouts, computation: Computation) -> Tensor:
        """See `Model`."""
        if computation.rows_at_once is not None:
            whole = replace(computation, rows_at_once=None)
            return torch.cat([self.logits(part, whole) for part in _parts(rollouts, computation.rows_at_once)])
        laid_out = self._layouts.of(rollouts, computation)
        hidden_MH = self._run(rollouts, computation, laid_out)[-1][laid_out.response_M]
        with self._model(computation) as model:
            norm = model.model.norm
            dtype = DTYPES[computation.dtype or self._dtype]
            hidden_MH = norm(hidden_MH).to(dtype)
            head = model.model.embed_tokens.weight if computation.tied else model.lm_head.weight
            wide = DTYPES[computation.head or computation.dtype or self._head]
            logits_NV = hidden_MH.to(wide) @ head.to(wide).T
        wide_NV: Tensor = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
        return wide_NV

    @torch.no_grad()
    def hidden_states(self, rollouts: Rollouts, computation: Computation) -> list[Tensor]:
        """See `Model`."""
        return self._run(rollouts, computation, self._layouts.of(rollouts, computation))

    def _run(self, rollouts: Rollouts, computation: Computation, laid_out: LaidOut) -> list[Tensor]:
        cache: Recorder | Replacer | None = None
        if computation.prompt_age:
            recorder = Recorder()
            self._layers(rollouts, replace(computation, age=computation.prompt_age, prompt_age=0), laid_out, recorder)
            cached_M = (laid_out.prompts_M - 1) // computation.block * computation.block
            places_RS = torch.zeros(laid_out.ids_RS.shape, dtype=torch.bool)
            places_RS[laid_out.rows_M, laid_out.columns_M] = laid_out.within_M < cached_M
            cache = Replacer(recorder, places_RS)
        return self._layers(rollouts, computation, laid_out, cache)

    def _layers(
        self, rollouts: Rollouts, computation: Computation, laid_out: LaidOut, cache: Recorder | Replacer | None
    ) -> list[Tensor]:
        """[M, H] of the embedding and behind each layer."""
        dtype = DTYPES[computation.dtype or self._dtype]
        stream = DTYPES[computation.residual or computation.dtype or self._residual]
        with self._model(computation) as model, ExitStack() as stack:
            inner = model.model
            if computation.operands is not None:
                stack.enter_context(rounding(inner.layers, computation.operands, laid_out.steps_RS.flatten()))
            if routers(model):
                router = DTYPES[computation.router] if computation.router else None
                stack.enter_context(routed(model, computation, _replayed(rollouts, computation, laid_out), router))
            turned = _angles(inner, computation, laid_out.positions_RS, dtype)
            mask_RSS = torch.zeros(laid_out.sees_RSS.shape, dtype=dtype).masked_fill_(~laid_out.sees_RSS, -torch.inf)
            hidden_RSH = inner.embed_tokens(laid_out.ids_RS).to(stream)
            states = [hidden_RSH]
            for layer in inner.layers:
                normed = layer.input_layernorm(hidden_RSH).to(dtype)
                attended, _ = layer.self_attn(
                    hidden_states=normed,
                    position_embeddings=turned,
                    attention_mask=mask_RSS[:, None],
                    past_key_values=cache,
                )
                hidden_RSH = (hidden_RSH + attended).to(stream)
                normed = layer.post_attention_layernorm(hidden_RSH).to(dtype)
                hidden_RSH = (hidden_RSH + layer.mlp(normed)).to(stream)
                states.append(hidden_RSH)
        return [state[laid_out.rows_M, laid_out.columns_M] for state in states]

    @contextmanager
    def _model(self, computation: Computation) -> Iterator[Any]:
        """The model of that age and dtype, with the tensors that are of another age in their places meanwhile."""
        model = self._cast(computation.age, computation.dtype or self._dtype)
        if not computation.tensors:
            yield model
            return
        other = published_parameters(self._cast(computation.tensors_age, computation.dtype or self._dtype))
        own = published_parameters(model)
        kept = {name: own[name].clone() for name in computation.tensors}
        try:
            for name in computation.tensors:
                own[name].copy_(other[name])
            yield model
        finally:
            for name, tensor in kept.items():
                own[name].copy_(tensor)

    def _cast(self, age: int, dtype: Dtype) -> Any:
        if dtype == self._dtype:
            return self._versions[age]
        key = (age, dtype)
        if key not in self._copies:
            model = copy.deepcopy(self._versions[age]).to(DTYPES[dtype])
            if dtype == "fp64":
                _widen_norms(model)
                # the grouped product has no fp64
                model.config._experts_implementation = "eager"
            self._copies[key] = model
        return self._copies[key]


def _widen_norms(model: Any) -> None:
    """transformers' RMSNorms compute in fp32 whatever they are given; torch's own do not."""
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            norm = torch.nn.RMSNorm(module.weight.shape, module.variance_epsilon, dtype=torch.float64)
            norm.weight = module.weight
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, norm)


def _angles(inner: Any, computation: Computation, positions_RS: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [R, S, size]; in fp64 from angles in fp64."""
    config = inner.config
    if computation.rope_theta is not None:
        config = copy.deepcopy(config)
        config.rope_parameters["rope_theta"] = computation.rope_theta
    rotary = type(inner.rotary_emb)(config)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    half_RSF = positions_RS[..., None].to(wide) * rotary.inv_freq.to(wide) / computation.rope_factor
    angles_RSE = torch.cat([half_RSF, half_RSF], dim=-1)
    scaling = rotary.attention_scaling
    return (angles_RSE.cos() * scaling).to(dtype), (angles_RSE.sin() * scaling).to(dtype)


def _replayed(rollouts: Rollouts, computation: Computation, laid_out: LaidOut) -> Tensor | None:
    """The engine's experts at every place of the layout, [places, L, K]."""
    experts_BTLK = rollouts.experts_BTLK
    if not computation.replay or experts_BTLK is None:
        return None
    rows, width = laid_out.ids_RS.shape
    placed_RSLK = torch.full((rows, width, *experts_BTLK.shape[2:]), -1, dtype=torch.int64)
    columns_T = torch.arange(rollouts.ids_BT.shape[1])
    placed_RSLK[laid_out.rows_M, laid_out.columns_M] = experts_BTLK[columns_T < rollouts.lengths_B[:, None]]
    return placed_RSLK.flatten(0, 1)


def _parts(rollouts: Rollouts, size: int) -> Iterator[Rollouts]:
    for begin in range(0, len(rollouts.ids_BT), size):
        rows = slice(begin, begin + size)
        longest = int(rollouts.lengths_B[rows].max())
        yield Rollouts(
            rollouts.ids_BT[rows, :longest],
            rollouts.prompt_lengths_B[rows],
            rollouts.lengths_B[rows],
            rollouts.engine_log_probs_BT[rows, :longest],
            rollouts.trainer_log_probs_BT[rows, :longest],
            rollouts.sampling,
            rollouts.stop_token_id,
            experts_BTLK=None if rollouts.experts_BTLK is None else rollouts.experts_BTLK[rows, :longest],
        )


def trainer_dtype(recipe: Recipe) -> Dtype:
    """What the recipe's trainer computes in."""
    return cast(Dtype, recipe.precision.dtype)


def built_from(recipe: Recipe, vocab_size: int, tensors: Iterable[tuple[str, Tensor]]) -> Any:
    """The recipe's model in transformers, in the trainer's precision; the weights come under their published names."""
    config = FAMILIES[recipe.model.family].hf_config(recipe.model, vocab_size)
    dtype = DTYPES[trainer_dtype(recipe)]
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype).eval()
    own = published_parameters(model)
    with torch.no_grad():
        for name, tensor in tensors:
            own[name].copy_(tensor)
    return model
