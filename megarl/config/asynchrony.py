"""Recipe section for generation that runs beside training."""

from dataclasses import dataclass

from megarl.config.fields import key


@dataclass
class AsynchronyConfig:
    """Whether servers generate while the trainer trains, and how old what it trains on may be."""

    mode: str = key(
        "sync",
        "'sync' generates with the newest weights and trains after; 'one_step_off' generates the next step's responses "
        "while it trains; 'fully_async' generates on through weight updates (see docs/asynchrony.md).",
        choices=("sync", "one_step_off", "fully_async"),
    )
    max_staleness: int = key(
        1,
        "fully_async: largest number of updates between the weights that wrote a token and those that it trains; "
        "generation that would exceed it is held back.",
        low=1,
    )
    spanning: str = key(
        "correct",
        "fully_async: of a response under way at an update, 'drop' begins it anew with the new weights, 'keep' goes on "
        "and trains on it as on others, 'correct' goes on and insists on importance weights or rejections.",
        choices=("correct", "keep", "drop"),
    )
    kv_cache: str = key(
        "recompute",
        "fully_async: keys and values of a response that goes on after an update: formed anew by the new weights, or "
        "kept as the old ones made them.",
        choices=("recompute", "keep"),
    )

    @property
    def lookahead(self) -> int:
        """Steps for which responses may be under way beside the one that is trained on."""
        return {"sync": 0, "one_step_off": 1, "fully_async": self.max_staleness}[self.mode]

    @property
    def goes_on(self) -> bool:
        """Whether a response under way at an update goes on after it."""
        return self.mode == "fully_async" and self.spanning != "drop"

    @property
    def keeps_cache(self) -> bool:
        """Whether it does so on the keys and values of the old weights."""
        return self.goes_on and self.kv_cache == "keep"
