"""The plan of a recipe: what it needs, whether that fits, and which layout would."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from megarl.config.errors import RecipeError
from megarl.config.model import ParallelConfig
from megarl.config.schema import Recipe
from megarl.config.validate import validate
from megarl.plan.activations import whole_logits
from megarl.plan.communication import step_bytes
from megarl.plan.memory import Memory, stage_memory
from megarl.plan.parameters import whole_model
from megarl.plan.recipe import layout_of, numerics_of, phases_of, shape_of, vocabulary
from megarl.plan.shape import Batch


@dataclass(frozen=True)
class Phase:
    """One phase of training under a layout.

    Attributes:
        name: 'sft' or 'rl'.
        batch: a rank's micro-batches of one optimizer step.
        engine_rows: responses that the engine decodes at once.
        stages: the memory of a rank of each pipeline stage.
        sent: bytes that a rank sends in an optimizer step, by part, on the stage that sends the most.
        whole_logits: bytes that the logits of a micro-batch and their gradient would take in fp32, were they held
            whole and not split over tensor ranks.
    """

    name: str
    batch: Batch
    engine_rows: int
    stages: list[Memory]
    sent: dict[str, int]
    whole_logits: int

    @property
    def heaviest(self) -> int:
        """The stage that needs the most memory."""
        return max(range(len(self.stages)), key=lambda stage: self.stages[stage].peak)

    @property
    def peak(self) -> int:
        """Bytes of a rank of that stage."""
        return self.stages[self.heaviest].peak


@dataclass(frozen=True)
class Plan:
    """What a recipe needs.

    Attributes:
        parallel: the layout.
        parameters: of the whole model, by part.
        phases: those that train.
    """

    parallel: ParallelConfig
    parameters: dict[str, int]
    phases: list[Phase]

    @property
    def peak(self) -> int:
        """Bytes that the fullest rank needs at the worst moment."""
        return max(phase.peak for phase in self.phases)

    @property
    def sent(self) -> int:
        """Bytes that a rank sends in a step of the last phase."""
        return sum(self.phases[-1].sent.values())


def plan_recipe(recipe: Recipe, vocab: int | None = None) -> Plan:
    """The plan under the recipe's own layout.

    Args:
        recipe: a recipe that was checked.
        vocab: tokens; those of the recipe's tokenizer if None.

    Raises:
        RecipeError: nothing is trained, or the tokenizer's tokens cannot be counted.
    """
    shape = shape_of(recipe, vocabulary(recipe.tokenizer) if vocab is None else vocab)
    layout, numerics = layout_of(recipe), numerics_of(recipe)
    phases = []
    for name, batch, beside in phases_of(recipe):
        stages = range(layout.pipeline)
        sent = (step_bytes(shape, layout, numerics, batch, stage) for stage in stages)
        phases.append(
            Phase(
                name=name,
                batch=batch,
                engine_rows=0 if beside.engine is None else beside.engine.rows,
                stages=[stage_memory(shape, layout, numerics, batch, beside, stage) for stage in stages],
                sent=max(sent, key=lambda parts: sum(parts.values())),
                whole_logits=whole_logits(batch.rows, batch.tokens // layout.context, shape.vocab),
            )
        )
    return Plan(recipe.parallel, whole_model(shape), phases)


def nearest_fit(recipe: Recipe, limit: int, vocab: int | None = None) -> tuple[Plan | None, Plan]:
    """Searches the layouts of the same number of ranks that the recipe's checks allow.

    Near means few doublings: the sum over tensor, pipeline, context, expert and data of |log2| of the change; of
    equally near ones the one that sends the least.

    Args:
        recipe: the recipe.
        limit: bytes of a device.
        vocab: as for `plan_recipe`.

    Returns:
        The nearest plan that needs no more than the limit, or None; and the one that needs the least.
    """
    vocab = vocabulary(recipe.tokenizer) if vocab is None else vocab
    plans = [plan_recipe(replace(recipe, parallel=parallel), vocab) for parallel in _layouts(recipe)]
    fitting = [plan for plan in plans if plan.peak <= limit]
    nearest = min(fitting, key=lambda plan: (_distance(recipe.parallel, plan.parallel), plan.sent), default=None)
    return nearest, min(plans, key=lambda plan: (plan.peak, _distance(recipe.parallel, plan.parallel)))


def rows_that_fit(phase: Phase, limit: int) -> int:
    """Responses that the engine could decode at once within the limit; 0 where training does not fit either."""
    most = phase.engine_rows
    for memory in phase.stages:
        free = limit - sum(memory.held.values())
        if memory.training_peak > free:
            return 0
        most = min(most, free * phase.engine_rows // max(1, sum(memory.rollout.values())))
    return most


def _layouts(recipe: Recipe) -> Iterator[ParallelConfig]:
    """Every layout that the checks let pass, the recipe's own among them."""
    world, own = recipe.parallel.world_size, recipe.parallel
    sizes = [size for size in range(1, world + 1) if world % size == 0]
    for tensor in sizes:
        for pipeline in (size for size in sizes if world // tensor % size == 0):
            # both belong to the number of stages that the recipe has
            stages: dict[str, Any] = {} if pipeline == own.pipeline else {"virtual": 1, "pipeline_layers": None}
            for context in (size for size in sizes if world // (tensor * pipeline) % size == 0):
                for sequence, experts in product((False, True), _expert_layouts(recipe, sizes)):
                    parallel = replace(
                        own, tensor=tensor, sequence=sequence, pipeline=pipeline, context=context, **stages, **experts
                    )
                    try:
                        validate(replace(recipe, parallel=parallel))
                    except RecipeError:
                        continue
                    yield parallel


def _expert_layouts(recipe: Recipe, sizes: list[int]) -> list[dict[str, Any]]:
    """Experts spread over any ranks, each split as the recipe says or whole; a dense model has none."""
    experts, split = recipe.model.moe.num_experts, recipe.parallel.expert_tensor
    if experts == 0:
        return [{}]
    splits = dict.fromkeys((split, 1))
    return [{"expert": size, "expert_tensor": one} for size in sizes if experts % size == 0 for one in splits]


def _distance(one: ParallelConfig, other: ParallelConfig) -> float:
    names = ("tensor", "pipeline", "context", "expert", "data")
    return sum(abs(math.log2(getattr(one, name) / getattr(other, name))) for name in names)
