"""Names that a recipe may use, and the search for the name that was probably meant."""

import difflib
from collections.abc import Iterable

# The registries themselves live in layers above this one; their tests hold them equal to these tuples.
OBJECTIVE_KEYS = {
    "ppo": ("clip_low", "clip_high", "dual_clip"),
    "grpo": ("clip_low", "clip_high", "dual_clip"),
    "dapo": ("clip_low", "clip_high", "dual_clip"),
    "dr_grpo": ("clip_low", "clip_high", "dual_clip"),
    "gspo": ("clip_low", "clip_high"),
    "cispo": ("clip_low", "clip_high"),
    "k2_5": ("ratio_low", "ratio_high", "tau"),
    "dppo_tv": ("delta",),
    "decoupled_ppo": ("clip_low", "clip_high"),
    "reinforce": (),
    "clip_cov": ("clip_low", "clip_high", "cov_share", "cov_low", "cov_high"),
    "kl_cov": ("cov_share", "beta"),
}
"""Registered objectives and the keys of rl.objective that each reads."""
KNOWN_OBJECTIVES = tuple(OBJECTIVE_KEYS)
CLIP_COV_BAND = (1.0, 5.0)
"""Defaults of clip_cov's cov_low and cov_high (2505.22617): a recipe may give one of the two."""
GROUP_RELATIVE = ("grpo", "dr_grpo", "rloo", "max_rl")
"""Advantages by which a group of equal rewards teaches nothing."""
KNOWN_ADVANTAGES = ("grpo", "dr_grpo", "rloo", "remax", "reinforce_pp", "reinforce_pp_baseline", "max_rl", "gae")
MOE_FAMILIES = ("qwen3_moe",)
"""Families with routed experts."""
KNOWN_FAMILIES = ("llama", "qwen2", "qwen3", *MOE_FAMILIES)
"""Model families; Hugging Face's model_type has the same names."""
KNOWN_REWARDS = ("boxed_answer", "exact", "reasoning_gym")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The name in `known` most like `word`, in capitals or not, or None where nothing comes close."""
    # Looser than difflib's .6, so that the first half of a name finds it.
    matches = difflib.get_close_matches(word.lower(), sorted(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def is_dotted_path(name: str) -> bool:
    """Whether `name` reads as `module.attribute`: two or more identifiers joined by dots."""
    parts = name.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)
