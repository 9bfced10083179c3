"""Keys that nothing would read, given what another key says: a value that does nothing is a mistake, not a preference.

Left out on purpose are the switches of whole phases (`sft.steps`, `rl.steps`, `evaluate.samples_per_prompt` at 0),
which are for turning a phase off with its settings in place, and permissions (`allow_...`), which set nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from megarl.config.keys import keys
from megarl.config.moe import MoEConfig
from megarl.config.refusal import in_words, refusal
from megarl.config.schema import Recipe


@dataclass(frozen=True)
class ReadWith:
    """When a key is read.

    Attributes:
        key: dotted key, or a section for all keys in it.
        switch: dotted key that decides.
        reads: whether the key is read where the switch has this value.
        fix: how to have it read, as an imperative.
    """

    key: str
    switch: str
    reads: Callable[[Any], bool]
    fix: str


def _one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: value in values


def _given(value: Any) -> bool:
    return value is not None


def _above_0(value: float) -> bool:
    return value > 0


_ROPE = ("model.rope_scaling", _one_of("llama3"), "set model.rope_scaling=llama3")
_ROPE_KEYS = ("rope_scaling_factor", "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_context")
_EXPERTS = ("model.moe.num_experts", _above_0, "give model.moe.num_experts above 0")
_EXPERT_KEYS = (
    *(f"model.moe.{field.name}" for field in fields(MoEConfig) if field.name != "num_experts"),
    "parallel.expert",
    "parallel.expert_tensor",
    "rl.routing_replay",
)
_FILE = ("data.source", _one_of("file"), "set data.source=file")
_KL_IN_LOSS = ("rl.kl.placement", _one_of("loss"), "set rl.kl.placement=loss")
_KL_WEIGHT = ("rl.kl.coefficient", _above_0, "give rl.kl.coefficient above 0")
_ICEPOP = ("rl.correction.weighting", _one_of("icepop"), "set rl.correction.weighting=icepop")
_16_BIT = ("precision.dtype", _one_of("bf16", "fp16"), "set precision.dtype=bf16")
_FP8 = ("precision.fp8.recipe", lambda recipe: recipe != "none", "choose a precision.fp8.recipe")
_DELAYED = ("precision.fp8.recipe", _one_of("delayed"), "set precision.fp8.recipe=delayed")
_SERVED = ("rollout.engine", lambda engine: engine != "embedded", "set rollout.engine=vllm")
_DISK = ("sync.transport", _one_of("disk"), "set sync.transport=disk")
_BROADCAST = ("sync.transport", _one_of("broadcast"), "set sync.transport=broadcast")
_ASYNC = ("rl.asynchrony.mode", _one_of("fully_async"), "set rl.asynchrony.mode=fully_async")
_RAISED = ("rl.entropy.alarm_action", _one_of("raise_clip"), "set rl.entropy.alarm_action=raise_clip")

READ_WITH = (
    ReadWith("sync.folder", *_DISK),
    ReadWith("sync.timeout_s", *_BROADCAST),
    ReadWith("engine", *_SERVED),
    ReadWith("sync", *_SERVED),
    *(ReadWith(f"rl.asynchrony.{name}", *_ASYNC) for name in ("max_staleness", "spanning", "kv_cache")),
    *(ReadWith(f"model.{name}", *_ROPE) for name in _ROPE_KEYS),
    *(ReadWith(name, *_EXPERTS) for name in _EXPERT_KEYS),
    ReadWith("precision.fp32_head", *_16_BIT),
    ReadWith("precision.fp32_residual", *_16_BIT),
    ReadWith("precision.loss_scale", "precision.dtype", _one_of("fp16"), "set precision.dtype=fp16"),
    *(ReadWith(f"precision.fp8.{name}", *_FP8) for name in ("format", "emulation", "param")),
    *(ReadWith(f"precision.fp8.{name}", *_DELAYED) for name in ("history", "history_algorithm")),
    ReadWith(
        "precision.fp8.block_scales",
        "precision.fp8.recipe",
        _one_of("blockwise"),
        "set precision.fp8.recipe=blockwise",
    ),
    *(ReadWith(f"data.{name}", *_FILE) for name in ("path", "eval_path", "demonstration_column")),
    *(ReadWith(f"data.{name}", *_FILE) for name in ("prompt_column", "answer_column")),
    ReadWith(
        "rl.gamma",
        "rl.advantage",
        _one_of("gae", "reinforce_pp", "reinforce_pp_baseline"),
        "set rl.advantage to gae, reinforce_pp or reinforce_pp_baseline",
    ),
    ReadWith("rl.critic", "rl.advantage", _one_of("gae"), "set rl.advantage=gae"),
    # the reference is scored anyway where a KL term needs it
    ReadWith("rl.measure_reference", "rl.kl.coefficient", lambda value: value == 0, "set rl.kl.coefficient=0"),
    ReadWith("rl.kl.importance_weighted", *_KL_IN_LOSS),
    ReadWith("rl.kl.cap", *_KL_IN_LOSS),
    *(ReadWith(f"rl.kl.{name}", *_KL_WEIGHT) for name in ("placement", "importance_weighted", "cap", "target")),
    ReadWith("rl.kl.horizon", "rl.kl.target", _given, "give rl.kl.target"),
    ReadWith("rl.entropy.alarm_action", "rl.entropy.alarm_share", _given, "give rl.entropy.alarm_share"),
    *(ReadWith(f"rl.entropy.{name}", *_RAISED) for name in ("alarm_clip_factor", "alarm_clip_max")),
    ReadWith("rl.correction.cap", "rl.correction.weighting", _one_of("tis"), "set rl.correction.weighting=tis"),
    ReadWith("rl.correction.low", *_ICEPOP),
    ReadWith("rl.correction.high", *_ICEPOP),
    ReadWith("rl.overlong.penalty", "rl.overlong.buffer_tokens", _above_0, "give rl.overlong.buffer_tokens above 0"),
    ReadWith("rl.overlong.buffer_tokens", "rl.overlong.penalty", _above_0, "give rl.overlong.penalty above 0"),
    ReadWith("observe.dump_keep", "observe.dump_every", _above_0, "give observe.dump_every above 0"),
    ReadWith(
        "rl.dynamic_sampling.max_batches", "rl.dynamic_sampling.enabled", bool, "set rl.dynamic_sampling.enabled=true"
    ),
)
"""Each key with each switch that it hangs on; `rl.objective` has a check of its own, by the objective's name."""


def every_key_is_read(recipe: Recipe) -> None:
    """A key that differs from its default is read by something."""
    for row in READ_WITH:
        switch = _at(recipe, row.switch)
        if row.reads(switch):
            continue
        for path, key in keys().items():
            if path != row.key and not path.startswith(f"{row.key}."):
                continue
            if (value := _at(recipe, path)) != key.default:
                reason = f"is not read with {row.switch}={in_words(switch)}"
                raise refusal(path, value, reason, f"{row.fix}, or set {path}={in_words(key.default)}")


def _at(recipe: Recipe, dotted: str) -> Any:
    node: Any = recipe
    for name in dotted.split("."):
        node = getattr(node, name)
    return node


UNREAD_CHECKS = (every_key_is_read,)
