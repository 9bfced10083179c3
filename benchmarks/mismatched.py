"""Trains a recipe on rollouts of an engine that is made, on purpose, to sample from another policy than the trainer's.

    python benchmarks/mismatched.py --weight-bits 4 --input-bits 4 --temperature 2 RECIPE [key=value ...]

The rest is as `megarl train` has it. The embedded engine keeps the weights that it was sent, and changes two things
where it generates to train on:

- weights and inputs of the transformer blocks' linear layers are rounded to integers of so many bits, with a scale an
  output channel of the weight and a scale a token of the input, as a quantising engine does it;
- it divides logits by `--temperature` times the recipe's temperature.

The log-probs that it returns are those of the distribution that it sampled from, so a correction has what it needs. It
evaluates with neither change: pass@k is that of the policy which the trainer holds, and `pass_at_1.jsonl` in the run's
folder has it after every few steps.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from transformers import PretrainedConfig

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from megarl.cli import main as megarl  # noqa: E402 - megarl need not be installed
from megarl.config.schema import Recipe  # noqa: E402
from megarl.diagnose.rounded_linear import operands_as, rounded_to_integers  # noqa: E402
from megarl.loop.evaluation import evaluate  # noqa: E402
from megarl.loop.rl import rl_step  # noqa: E402
from megarl.loop.run import Run  # noqa: E402
from megarl.megatron.models import FAMILIES  # noqa: E402
from megarl.observe.files import JsonlFile  # noqa: E402
from megarl.observe.samples import Sample  # noqa: E402
from megarl.platform.platform import current  # noqa: E402
from megarl.rollout.embedded import EmbeddedEngine  # noqa: E402
from megarl.rollout.types import Completion, Request, SamplingParams  # noqa: E402

EVALUATE_EVERY = 4
PASS_AT_1 = "pass_at_1.jsonl"
TRAINING = "rl/"
"""What the streams of requests begin with whose responses are trained on."""


@dataclass(frozen=True)
class Mismatch:
    """How the engine differs.

    Attributes:
        weight_bits: of a weight's integers, 2 to 16; None for no rounding.
        input_bits: of those of a layer's input; likewise.
        temperature: what the recipe's temperature is multiplied by.
    """

    weight_bits: int | None = None
    input_bits: int | None = None
    temperature: float = 1.0


class MismatchedEngine(EmbeddedEngine):
    """The embedded engine, off on purpose for the requests whose responses are trained on."""

    def __init__(
        self, config: PretrainedConfig, mismatch: Mismatch, *, seed: int, max_batch_size: int, device: torch.device
    ) -> None:
        """See `EmbeddedEngine`, and the module's docstring for `mismatch`."""
        super().__init__(config, seed=seed, max_batch_size=max_batch_size, device=device)
        self._mismatch = mismatch

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """See `Engine`. The requests of one call are all trained on, or none of them is."""
        if not requests or not requests[0].stream.startswith(TRAINING):
            return super().generate(requests, sampling)
        other = replace(sampling, temperature=self._mismatch.temperature * sampling.temperature)
        with _rounding(self._model.model.layers, self._mismatch):
            return super().generate(requests, other)


def _rounding(layers: torch.nn.Module, mismatch: Mismatch) -> AbstractContextManager[None]:
    """Has every linear layer below `layers` round its weight and its input while it lasts."""
    weight_as, input_as = (
        None if bits is None else partial(rounded_to_integers, bits=bits)
        for bits in (mismatch.weight_bits, mismatch.input_bits)
    )
    return operands_as(layers, weight_as, input_as)


def train_mismatched(mismatch: Mismatch, arguments: Sequence[str]) -> int:
    """`megarl train` in this process, with the mismatched engine in the embedded one's place; its exit code."""

    def build(recipe: Recipe, vocab_size: int) -> EmbeddedEngine:
        return MismatchedEngine(
            FAMILIES[recipe.model.family].hf_config(recipe.model, vocab_size),
            mismatch,
            seed=recipe.seed,
            max_batch_size=recipe.rollout.max_batch_size,
            device=current().device,
        )

    def step(run: Run) -> tuple[dict[str, float], list[Sample]]:
        done = rl_step(run)
        # the state's count of steps goes up after this
        if (run.state.step + 1) % EVALUATE_EVERY == 0:
            found = evaluate(run)
            at_1 = found["pass_at_k"][found["ks"].index(1)]
            file = JsonlFile(run.folder / PASS_AT_1)
            file.append({"phase": "rl", "step": run.state.step + 1, "pass_at_1": at_1})
            file.close()
        return done

    with patch("megarl.loop.run.build_engine", build), patch("megarl.loop.train.rl_step", step):
        return megarl(["train", *arguments])


def main() -> int:
    """Parses, and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--weight-bits", "--input-bits"):
        parser.add_argument(name, type=int, choices=range(2, 17), metavar="N", help="2 to 16; without it, no rounding")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="F", help="factor of the recipe's; default 1")
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    mismatch = Mismatch(arguments.weight_bits, arguments.input_bits, arguments.temperature)
    return train_mismatched(mismatch, [arguments.recipe, *arguments.overrides])


if __name__ == "__main__":
    sys.exit(main())
