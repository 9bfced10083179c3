"""Recipe sections for generation and evaluation."""

from dataclasses import dataclass

from megarl.config.fields import key


@dataclass
class RolloutConfig:
    """The engine and how it samples, for training and evaluation; the trainer's log-probs are of that distribution."""

    engine: str = key(
        "embedded",
        "The rollout engine: 'embedded' generates in the trainer's processes, 'vllm' and 'sglang' on servers.",
        choices=("embedded", "vllm", "sglang"),
    )
    temperature: float = key(
        1.0, "Sampling temperature; logits are divided by it. vLLM would sample at 0.01 if asked for less.", low=0.01
    )
    top_p: float = key(
        1.0,
        "Of what top_k leaves, the fewest likeliest tokens whose probability reaches it are sampled; 1 for all.",
        above=0,
        high=1,
    )
    top_k: int = key(0, "The likeliest tokens, so many, are sampled; 0 for all.", low=0)
    max_new_tokens: int = key(64, "Longest response, in tokens, end token included.", low=1)
    max_batch_size: int = key(2048, "Responses that the embedded engine decodes at once, a process.", low=1)


@dataclass
class EvaluateConfig:
    """pass@k on the evaluation prompts, before and after RL."""

    samples_per_prompt: int = key(64, "Responses a prompt; 0 turns evaluation off.", low=0)
    ks: list[int] = key(factory=lambda: [1, 2, 4, 8, 16, 32], doc="The k of pass@k; none above samples_per_prompt.")
    solved_from: float = key(1.0, "Reward from which a response counts as right.")
