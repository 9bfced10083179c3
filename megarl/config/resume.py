"""Which keys a resumed run may change, and how two recipes differ."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from megarl.config.provenance import leaves
from megarl.config.refusal import in_words

# These decide where a run writes, how often, how long it waits, what ends it and how losslessly sent bytes travel, and
# never a number that it computes.
FREE_ON_RESUME = (
    "name",
    "output_dir",
    "resume",
    "observe",
    "checkpoint",
    "faults",
    "drift.warn",
    "drift.stop",
    "parallel.timeout_s",
    "sync",
    "engine.urls",
    "engine.allow_remote",
    "engine.token_variable",
    "engine.restarts",
    "engine.start_timeout_s",
    "engine.request_timeout_s",
    "engine.update_timeout_s",
    "engine.health_timeout_s",
)

# These decide which process computes what and in which order sums are formed: every number stays the same up to
# rounding. Not among them is parallel.distributed_optimizer, whose state has another form.
LAYOUT_ON_RESUME = (
    "parallel.world_size",
    "parallel.tensor",
    "parallel.sequence",
    "parallel.pipeline",
    "parallel.virtual",
    "parallel.pipeline_layers",
    "parallel.context",
    "parallel.expert",
    "parallel.expert_tensor",
    "parallel.recompute",
    "parallel.threads",
    "sft.micro_batch_size",
    "sft.micro_batch_tokens",
    "rl.micro_batch_size",
    "rl.micro_batch_tokens",
    "rollout.max_batch_size",
    "engine.replicas",
    "engine.tensor",
    "engine.python",
    "engine.max_concurrent",
    "engine.kv_cache_gib",
)

_SHOWN = 8
_ABSENT = object()


@dataclass(frozen=True)
class Changes:
    """Keys whose values differ between two recipes, each as 'key old -> new'.

    Attributes:
        fixed: those that decide numbers: the run would be another.
        layout: those under `LAYOUT_ON_RESUME`.
        free: those under `FREE_ON_RESUME`, without `output_dir`, `resume` and what only names the run.
    """

    fixed: list[str]
    layout: list[str]
    free: list[str]

    @property
    def allowed(self) -> list[str]:
        """Those that a resumed run may have."""
        return [*self.layout, *self.free]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """How the recipe `after` differs from the recipe `before`, both as nested dicts."""
    old, new = ({".".join(path): value for path, value in leaves(dict(tree))} for tree in (before, after))
    found = Changes([], [], [])
    for key in dict.fromkeys((*old, *new)):
        was, now = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if was == now or key in ("name", "output_dir", "resume"):
            continue
        # a mapping that was empty, or is now: its keys tell of the change
        if any(other.startswith(f"{key}.") for other in (*old, *new)):
            continue
        words = f"{key} {_in_words(was)} -> {_in_words(now)}"
        if under(key, FREE_ON_RESUME):
            found.free.append(words)
        elif under(key, LAYOUT_ON_RESUME):
            found.layout.append(words)
        else:
            found.fixed.append(words)
    return found


def under(key: str, names: Iterable[str]) -> bool:
    """Whether a dotted key is one of `names` or in a section that is."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def listed(words: list[str]) -> str:
    """The changes as one text, cut where there are many."""
    more = len(words) - _SHOWN
    return ", ".join(words[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _in_words(value: Any) -> str:
    return "(none)" if value is _ABSENT else in_words(value)
