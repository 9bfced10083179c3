"""The embedded engine: generation in the trainer's own process, with the family's own transformers model.

Every trainer process holds the whole model and decodes its share of the requests, so it suits models that fit one
device beside their shard of the trainer. It shares no layer code with Megatron-core, which makes the drift between
the two a real measurement. Where the recipe asks for batch-invariant arithmetic, it computes by the trainer's
functions, and there is no drift: see `invariant_model`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PretrainedConfig

from megarl.rollout.engine import WeightsError
from megarl.rollout.hf_parameters import published_parameters
from megarl.rollout.invariant_model import Invariance, InvariantModel
from megarl.rollout.routing import RoutingLog, RoutingRecorder
from megarl.rollout.sampling import sample, uniforms
from megarl.rollout.types import Completion, Request, SamplingParams, VersionSpan

COMPACT_BELOW = 0.75
"""Finished rows are dropped from the batch once the share of live ones falls below this: each drop copies the cache."""


class EmbeddedEngine:
    """Implements `megarl.rollout.engine.Engine`."""

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        seed: int,
        max_batch_size: int,
        device: torch.device,
        invariance: Invariance | None = None,
    ) -> None:
        """Builds the model without weights.

        Args:
            config: the model's Hugging Face configuration.
            seed: the recipe's seed, part of the key of every response's randomness.
            max_batch_size: responses decoded at once.
            device: where the model lives.
            invariance: what the trainer computes by where its bits are to be this engine's; None for transformers'
                own forward pass, in fp32.
        """
        self.version = -1
        self._seed, self._max_batch_size, self._device = seed, max_batch_size, device
        self._context = config.max_position_embeddings
        dtype = torch.float32 if invariance is None else invariance.dtype
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
        self._model = model.to(device).eval()
        self._invariant = None if invariance is None else InvariantModel(self._model, invariance)
        self._parameters = published_parameters(self._model)

    @torch.no_grad()
    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `Engine`. The tensors are copied; each call to `generate` starts with an empty cache."""
        # until all of them are here the model is a mixture of two versions
        self.version = -1
        missing = set(self._parameters)
        for name, tensor in tensors:
            if name not in missing:
                raise WeightsError(
                    f"{name} arrived {'twice' if name in self._parameters else 'but is not in the model'}"
                )
            if tensor.shape != self._parameters[name].shape:
                raise WeightsError(
                    f"{name} arrived as {tuple(tensor.shape)}, the model has {tuple(self._parameters[name].shape)}"
                )
            self._parameters[name].copy_(tensor)
            missing.remove(name)
        if missing:
            raise WeightsError(f"{len(missing)} tensors did not arrive, such as {min(missing)}")
        if self._invariant is not None:
            self._invariant.take_weights()
        self.version = version

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """See `Engine`.

        Raises:
            RuntimeError: no weights were loaded yet, or the last load failed.
            ValueError: a prompt is empty or leaves no room in the context, or the model has no experts to tell of.
        """
        if self.version < 0:
            raise RuntimeError("the embedded engine has no weights yet")
        for request in requests:
            if not 0 < len(request.prompt_ids) < self._context:
                raise ValueError(
                    f"the prompt of {request.problem_id} has {len(request.prompt_ids)} tokens, "
                    f"which is not between 1 and {self._context - 1}"
                )
        # rows of like length waste the least padding; the order asked for is restored at the end
        order = sorted(range(len(requests)), key=lambda row: len(requests[row].prompt_ids))
        completions: dict[int, Completion] = {}
        with self._recording() if sampling.with_routing else nullcontext() as recorder:
            for begin in range(0, len(order), self._max_batch_size):
                rows = order[begin : begin + self._max_batch_size]
                decoded = self._decode([requests[row] for row in rows], sampling, recorder)
                completions.update(zip(rows, decoded, strict=True))
        return [completions[row] for row in range(len(requests))]

    @contextmanager
    def _recording(self) -> Iterator[RoutingRecorder]:
        config = self._model.config
        if getattr(config, "num_experts_per_tok", None) is None:
            raise ValueError("the model has no routed experts, and the request asks for them")
        recorder = RoutingRecorder(self._model, config.num_hidden_layers, config.num_experts_per_tok)
        try:
            yield recorder
        finally:
            recorder.close()

    def _decode(
        self, requests: list[Request], sampling: SamplingParams, recorder: RoutingRecorder | None
    ) -> list[Completion]:
        ids_BP, present_BP = _left_pad(requests, self._device)
        count, prompt_width = ids_BP.shape
        width = sampling.max_new_tokens
        draws_BT = None if sampling.greedy else uniforms(requests, self._seed, width).to(self._device)
        budget_B = (present_BP.sum(dim=1).neg() + self._context).clamp(max=width)
        tokens_BT = torch.zeros(count, width, dtype=torch.int64, device=self._device)
        log_probs_BT = torch.zeros(count, width, device=self._device)
        lengths_B = budget_B.clone()

        cache = DynamicCache(config=self._model.config)
        live = torch.arange(count, device=self._device)
        active = torch.ones(count, dtype=torch.bool, device=self._device)
        positions_B = present_BP.sum(dim=1) - 1
        present = torch.cat([present_BP, torch.ones(count, width, dtype=torch.bool, device=self._device)], dim=1)
        logits_BV = self._forward(ids_BP, (present_BP.cumsum(1) - 1).clamp(min=0), _prefill_mask(present_BP), cache)
        routing = None if recorder is None else RoutingLog(recorder, count, prompt_width + width)
        if routing is not None:
            routing.take(live, 0)
        for step in range(width):
            draws_B = None if draws_BT is None else draws_BT[live, step]
            tokens_B, step_log_probs_B = sample(
                logits_BV,
                sampling.temperature,
                draws_B,
                sampling.top_p,
                sampling.top_k,
                batch_invariant=self._invariant is not None,
            )
            writing = live[active]
            tokens_BT[writing, step] = tokens_B[active]
            log_probs_BT[writing, step] = step_log_probs_B[active]
            stopped = active & (tokens_B == sampling.stop_token_id)
            lengths_B[live[stopped]] = step + 1
            active = active & ~stopped & (budget_B[live] > step + 1)
            remaining = int(active.sum())
            if remaining == 0:
                break
            if remaining < COMPACT_BELOW * len(live):
                live, tokens_B, positions_B, present = (
                    live[active],
                    tokens_B[active],
                    positions_B[active],
                    present[active],
                )
                cache.batch_select_indices(active.nonzero()[:, 0])
                active = active[active]
            # a finished row that is still in the batch decodes on, unread; its position must stay in the context
            positions_B = (positions_B + 1).clamp(max=self._context - 1)
            mask = present[:, None, None, : prompt_width + step + 1]
            logits_BV = self._forward(tokens_B[:, None], positions_B[:, None], mask, cache)
            if routing is not None:
                routing.take(live, prompt_width + step)
        completions = self._completions(requests, sampling, tokens_BT, log_probs_BT, lengths_B)
        return completions if routing is None else _with_routing(completions, routing, prompt_width)

    def _forward(self, ids_BT: Tensor, positions_BT: Tensor, mask_B1TS: Tensor, cache: DynamicCache) -> Tensor:
        if self._invariant is not None:
            return self._invariant.logits(ids_BT, positions_BT, mask_B1TS, cache)
        output = self._model(
            input_ids=ids_BT,
            position_ids=positions_BT,
            attention_mask=mask_B1TS,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_BV: Tensor = output.logits[:, -1]
        return logits_BV

    def _completions(
        self,
        requests: list[Request],
        sampling: SamplingParams,
        tokens_BT: Tensor,
        log_probs_BT: Tensor,
        lengths_B: Tensor,
    ) -> list[Completion]:
        completions = []
        rows = zip(requests, tokens_BT.tolist(), log_probs_BT.tolist(), lengths_B.tolist(), strict=True)
        for request, tokens, log_probs, length in rows:
            stopped = tokens[length - 1] == sampling.stop_token_id
            completions.append(
                Completion(
                    request=request,
                    token_ids=tuple(tokens[:length]),
                    log_probs=tuple(log_probs[:length]),
                    finish_reason="stop" if stopped else "length",
                    versions=(VersionSpan(self.version, 0, length),),
                )
            )
        return completions


def _left_pad(requests: Sequence[Request], device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts against the right edge, and where they are: ids [B, P], present [B, P]."""
    width = max(len(request.prompt_ids) for request in requests)
    ids = torch.zeros(len(requests), width, dtype=torch.int64)
    present = torch.zeros(len(requests), width, dtype=torch.bool)
    for row, request in enumerate(requests):
        ids[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
        present[row, width - len(request.prompt_ids) :] = True
    return ids.to(device), present.to(device)


def _with_routing(completions: list[Completion], routing: RoutingLog, prompt_width: int) -> list[Completion]:
    """Prompts end at column `prompt_width`; a response's last token is not read."""
    spans = [
        (prompt_width - len(each.request.prompt_ids), prompt_width + len(each.token_ids) - 1) for each in completions
    ]
    return [
        replace(each, routing=routing.of_row(row, *span))
        for row, (each, span) in enumerate(zip(completions, spans, strict=True))
    ]


def _prefill_mask(present_BP: Tensor) -> Tensor:
    """Causal, and blind to padding; padding sees itself, since a softmax over nothing is NaN and would spread."""
    width = present_BP.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=present_BP.device).tril()
    diagonal = torch.eye(width, dtype=torch.bool, device=present_BP.device)
    return ((causal & present_BP[:, None, :]) | diagonal)[:, None]
