"""Faults of the weights, of the model's settings and of its precision."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from megarl.diagnose.routers import routers
from megarl.diagnose.selftest.engine import PROMPT_BLOCK
from megarl.diagnose.selftest.fault import Fault, Planted
from megarl.diagnose.selftest.precision_faults import with_head, with_operands, with_residual
from megarl.diagnose.selftest.scene import Scene
from megarl.diagnose.selftest.small import in_dtype
from megarl.diagnose.transformers_model import TransformersModel
from megarl.drift.diagnosis.computation import Computation, Dtype, Operands
from megarl.drift.diagnosis.distribution import Distributions
from megarl.drift.diagnosis.rollouts import Rollouts
from megarl.rollout.hf_parameters import published_parameters

_NOISE = 0.3


@dataclass(frozen=True)
class AskedEngine:
    """A planted engine that can be asked; it implements `megarl.drift.diagnosis.side.EngineSide`.

    Attributes:
        model: with the fault.
        tells: 'digests' or 'hidden_states', or neither.
        noise: added to each logit, anew each time.
        generator: what draws it.
    """

    model: TransformersModel
    tells: str
    noise: float
    generator: torch.Generator

    def log_probs(self, rollouts: Rollouts, rows_at_once: int) -> Tensor | None:
        """See `EngineSide`."""
        logits_NV = self.model.logits(rollouts, Computation(rows_at_once=rows_at_once))
        if self.noise:
            logits_NV = logits_NV + self.noise * torch.randn(logits_NV.shape, generator=self.generator)
        return Distributions(logits_NV, rollouts.targets_N).log_probs(rollouts.sampling)

    def hidden_states(self, rollouts: Rollouts) -> list[Tensor] | None:
        """See `EngineSide`."""
        return self.model.hidden_states(rollouts, Computation()) if self.tells == "hidden_states" else None

    def digests(self) -> Mapping[str, str] | None:
        """See `EngineSide`."""
        return self.model.digests() if self.tells == "digests" else None


def _with(scene: Scene, model: Any, says: str = "") -> Planted:
    scene.engine.model = model
    return Planted(scene.rollouts(), says)


def _stale(scene: Scene) -> Planted:
    age = 1 + scene.choose(len(scene.versions) - 1)
    return _with(scene, scene.versions[age], f"{age} version(s)")


def _prefix_cache(scene: Scene) -> Planted:
    age = 1 + scene.choose(len(scene.versions) - 1)
    scene.engine.stale = scene.versions[age]
    return Planted(scene.rollouts(), f"{age} version(s) before the newest, in whole blocks of {PROMPT_BLOCK}")


def _tensor(scene: Scene, *, tells: str) -> Planted:
    """One tensor did not arrive with the newest version."""
    model = copy.deepcopy(scene.versions[0])
    own, old = published_parameters(model), published_parameters(scene.versions[1])
    names = [name for name in own if name.endswith(("_proj.weight", "lm_head.weight", "embed_tokens.weight"))]
    name = names[scene.choose(len(names))]
    with torch.no_grad():
        own[name].copy_(old[name])
    if tells:
        # nothing older is at hand here, so that the engine's own word decides
        scene.versions = scene.versions[:1]
        scene.side = AskedEngine(TransformersModel([model], scene.dtype), tells, 0.0, scene.generator)
    place = name
    if tells == "hidden_states":
        inside = name.startswith("model.layers.")
        place = f"layer {name.split('.')[2]}" if inside else {"lm_head.weight": "lm_head"}.get(name, "the embedding")
    return _with(scene, model, place)


def _tied(scene: Scene) -> Planted:
    model = copy.deepcopy(scene.versions[0])
    # the head's own scale is kept, so that logits stay of a usual size
    ratio = model.lm_head.weight.std() / model.model.embed_tokens.weight.std()
    for version in (*scene.versions, model):
        version.model.embed_tokens.weight.data *= ratio
    model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)
    return _with(scene, model)


def _dtype(scene: Scene) -> Planted:
    dtype: Dtype = "bf16" if scene.dtype == "fp32" else "fp32"
    return _with(scene, in_dtype(scene.versions[0], dtype), f"those of {dtype}")


def _head(scene: Scene) -> Planted:
    return _with(scene, with_head(scene.versions[0], "bf16" if scene.dtype == "fp32" else "fp32"))


def _residual(scene: Scene) -> Planted:
    return _with(scene, with_residual(scene.versions[0], "bf16" if scene.dtype == "fp32" else "fp32"))


def _fp8(scene: Scene) -> Planted:
    kinds: tuple[Operands, ...] = ("fp8_row", "fp8_tensor")
    return quantised_engine(scene, kinds[scene.choose(2)])


def _int8(scene: Scene) -> Planted:
    return quantised_engine(scene, "int8_row")


def quantised_engine(scene: Scene, kind: Operands) -> Planted:
    """An engine whose linear layers are in 8 bits: 'fp8_row', 'fp8_tensor' or 'int8_row'."""
    return _with(scene, with_operands(scene.versions[0], kind), f"each {kind.partition('_')[2]}")


def _rope(scene: Scene, *, scaled: bool) -> Planted:
    model = copy.deepcopy(scene.versions[0])
    config = copy.deepcopy(model.config)
    if scaled:
        config.rope_parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    else:
        config.rope_parameters["rope_theta"] = 1e6
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return _with(scene, model, "divided by 4" if scaled else "rope_theta=1e+06")


def _renormalised(scene: Scene) -> Planted:
    model = copy.deepcopy(scene.versions[0])
    for router in routers(model):
        router.norm_topk_prob = False
    return _with(scene, model, "norm_topk_prob=false")


def _experts(scene: Scene) -> Planted:
    model = copy.deepcopy(scene.versions[0])
    for router in routers(model):
        router.top_k = 1
    return _with(scene, model, "1 experts a token")


def _other_experts(scene: Scene) -> Planted:
    """A tenth of the tokens go to the third-best expert in place of the second, and the engine tells of it."""
    model = copy.deepcopy(scene.versions[0])
    told: dict[int, list[Tensor]] = {}

    def choose(router: Any, _inputs: Any, output: Any, layer: int) -> Any:
        ranked_MK = output[0].topk(3, dim=-1).indices
        swapped_M1 = torch.rand(len(ranked_MK), 1, generator=scene.generator) < 0.1
        ids_MK = torch.where(swapped_M1, ranked_MK[:, [0, 2]], ranked_MK[:, :2])
        weights_MK = output[0].softmax(dim=-1, dtype=torch.float32).gather(1, ids_MK)
        told.setdefault(layer, []).append(ids_MK)
        return output[0], (weights_MK / weights_MK.sum(dim=-1, keepdim=True)).to(output[1].dtype), ids_MK

    for layer, router in enumerate(routers(model)):
        router.register_forward_hook(partial(choose, layer=layer))
    scene.engine.model = model
    rollouts = scene.rollouts()
    return Planted(replace(rollouts, experts_BTLK=_told(rollouts, told)), "sent to the experts that it reported")


def _told(rollouts: Rollouts, told: dict[int, list[Tensor]]) -> Tensor:
    """What the engine told, prompts padded on their left, as the trainer lays it out."""
    rows, width = rollouts.ids_BT.shape
    longest = int(rollouts.prompt_lengths_B.max())
    by_layer = [
        torch.cat([part_MK.view(rows, -1, part_MK.shape[-1]) for part_MK in parts], dim=1) for parts in told.values()
    ]
    experts_BSLK = torch.stack(by_layer, dim=2)
    laid_BTLK = torch.full((rows, width, *experts_BSLK.shape[2:]), -1)
    for row, (prompt, end) in enumerate(
        zip(rollouts.prompt_lengths_B.tolist(), rollouts.lengths_B.tolist(), strict=True)
    ):
        # the last token was sampled and not read
        laid_BTLK[row, : end - 1] = experts_BSLK[row, longest - prompt : longest + end - prompt - 1]
    return laid_BTLK


def _noisy(scene: Scene) -> Planted:
    scene.engine.noise = _NOISE
    scene.side = AskedEngine(scene.model, "", _NOISE, scene.generator)
    return Planted(scene.rollouts())


_MIXTURE = ("qwen3_moe",)
FAULTS = (
    Fault("stale weights", "stale_weights", "engine", _stale),
    Fault("stale prefix cache", "prefix_cache", "engine", _prefix_cache),
    Fault("tied head", "tied_head", "engine", _tied),
    Fault("tensor that differs, by older weights", "tensor", "engine", partial(_tensor, tells="")),
    Fault("tensor that differs, by digest", "tensor", "engine", partial(_tensor, tells="digests")),
    Fault("tensor that differs, by hidden states", "tensor", "engine", partial(_tensor, tells="hidden_states")),
    Fault("rope base", "rope", "engine", partial(_rope, scaled=False)),
    Fault("rope scaling", "rope", "engine", partial(_rope, scaled=True)),
    Fault("experts' weights not normalised", "routing", "engine", _renormalised, _MIXTURE),
    Fault("fewer experts a token", "routing", "engine", _experts, _MIXTURE),
    Fault("tokens at other experts", "routing", "engine", _other_experts, _MIXTURE),
    Fault("whole engine in another dtype", "dtype", "engine", _dtype),
    Fault("output layer in another dtype", "head_precision", "engine", _head),
    Fault("residual stream in another dtype", "residual_precision", "engine", _residual),
    Fault("fp8", "fp8", "engine", _fp8),
    Fault("int8", "int8", "engine", _int8),
    Fault("engine not deterministic", "nondeterminism", "engine", _noisy),
)
