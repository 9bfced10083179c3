"""A plan as JSON, and as tables for the terminal."""

import json
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from megarl.config.model import ParallelConfig
from megarl.config.refusal import in_words
from megarl.plan.memory import Memory
from megarl.plan.plan import Phase, Plan, rows_that_fit

GIB = 2**30


def as_json(plan: Plan, limit: int, nearest: Plan | None, least: Plan | None) -> str:
    """The plan with every stage, in bytes, and the layouts that the search found, null where it was not made."""
    tree = {
        "layout": layout_keys(plan.parallel),
        "parameters": plan.parameters | {"total": sum(plan.parameters.values())},
        "phases": {phase.name: _phase_tree(phase) for phase in plan.phases},
        "peak_bytes": plan.peak,
        "gpu_memory_bytes": limit,
        "fits": plan.peak <= limit,
        "nearest_that_fits": None if nearest is None else _found(nearest),
        "least": None if least is None else _found(least),
    }
    return json.dumps(tree, indent=2) + "\n"


def print_report(console: Console, plan: Plan, limit: int, nearest: Plan | None, least: Plan | None) -> None:
    """Parameters; memory and communication of each phase; the verdict, with the nearest layout that fits."""

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    say("Parameters", "bold")
    console.print(_parameters(plan))
    for phase in plan.phases:
        tokens = phase.batch.rows * phase.batch.tokens
        say(f"{phase.name}: GiB a rank, {phase.batch.count} micro-batches of {tokens:,} tokens", "bold")
        console.print(_memory(phase))
        say(f"Logits of a micro-batch and their gradient, held whole in fp32: {_gib(phase.whole_logits)} GiB.\n")
        say(f"{phase.name}: GiB sent by a rank in an optimizer step", "bold")
        console.print(_sent(phase))
    say(verdict(plan, limit, nearest, least))


def verdict(plan: Plan, limit: int, nearest: Plan | None, least: Plan | None) -> str:
    """Whether the plan fits, in words; what is in the way, and what would fit, where it does not."""
    if plan.peak <= limit:
        return f"Fits: {_gib(plan.peak)} GiB of {_gib(limit)} GiB on the fullest rank."
    phase = max(plan.phases, key=lambda phase: phase.peak)
    parts = _at_peak(phase.stages[phase.heaviest])
    largest = max(parts, key=lambda part: parts[part])
    lines = [
        f"Does not fit: {_gib(plan.peak)} GiB on stage {phase.heaviest} in {phase.name}, {_gib(plan.peak - limit)} GiB "
        f"over {_gib(limit)} GiB; the largest part is {largest}, {_gib(parts[largest])} GiB."
    ]
    if (rows := min(rows_that_fit(phase, limit) for phase in plan.phases)) > 0:
        lines.append(f"Under this layout it fits with rollout.max_batch_size={rows} or less.")
    if nearest is not None:
        arguments = _arguments(nearest.parallel, plan.parallel)
        lines.append(f"Nearest layout that fits, with {_gib(nearest.peak)} GiB: {arguments}")
    elif least is not None:
        lines.append(
            f"No layout of parallel.world_size={plan.parallel.world_size} fits; the least is {_gib(least.peak)} GiB: "
            f"{_arguments(least.parallel, plan.parallel)}"
        )
    return "\n".join(lines)


def layout_keys(parallel: ParallelConfig) -> dict[str, int | bool | None]:
    """The keys of the layout, with data parallelism, which follows from them."""
    names = ("world_size", "tensor", "sequence", "pipeline", "context", "expert", "expert_tensor", "data")
    return {name: getattr(parallel, name) for name in names}


def _phase_tree(phase: Phase) -> dict[str, Any]:
    return {
        "micro_batches": phase.batch.count,
        "tokens_a_micro_batch": phase.batch.rows * phase.batch.tokens,
        "stages": [
            {"held": memory.held, "training": memory.training, "rollout": memory.rollout, "peak": memory.peak}
            for memory in phase.stages
        ],
        "sent_a_step": phase.sent | {"total": sum(phase.sent.values())},
        "whole_logits": phase.whole_logits,
    }


def _found(plan: Plan) -> dict[str, Any]:
    return {"layout": layout_keys(plan.parallel), "peak_bytes": plan.peak, "sent_a_step": plan.sent}


def _parameters(plan: Plan) -> Table:
    total = sum(plan.parameters.values())
    table = _table("", "number", "share")
    for part, count in plan.parameters.items():
        if count:
            table.add_row(part, f"{count:,}", f"{count / total:.1%}")
    table.add_row("total", f"{total:,}", "")
    return table


def _memory(phase: Phase) -> Table:
    """One column for the first, the heaviest and the last stage."""
    shown = sorted({0, phase.heaviest, len(phase.stages) - 1})
    table = _table("", *(f"stage {stage}" for stage in shown))
    stages = [phase.stages[stage] for stage in shown]
    for group in ("held", "training", "rollout"):
        for part in dict.fromkeys(part for memory in stages for part in getattr(memory, group)):
            when = "" if group == "held" else f", {group}"
            table.add_row(f"{part}{when}", *(_gib(getattr(memory, group).get(part, 0)) for memory in stages))
    table.add_row("peak", *(_gib(memory.peak) for memory in stages))
    return table


def _sent(phase: Phase) -> Table:
    table = _table("", "GiB")
    for part, size in phase.sent.items():
        if size:
            table.add_row(part, _gib(size))
    table.add_row("total", _gib(sum(phase.sent.values())))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


def _at_peak(memory: Memory) -> dict[str, int]:
    return memory.held | (memory.training if memory.training_peak > sum(memory.rollout.values()) else memory.rollout)


def _gib(size: int) -> str:
    return f"{size / GIB:,.3g}" if size < 1000 * GIB else f"{size / GIB:,.0f}"


def _arguments(parallel: ParallelConfig, recipe: ParallelConfig) -> str:
    keys = ["tensor", "sequence", "pipeline", "context"]
    # said where the recipe's own must be taken back
    others = ("expert", "expert_tensor", "virtual", "pipeline_layers")
    keys += [key for key in others if getattr(recipe, key) != getattr(parallel, key)]
    values = {key: getattr(parallel, key) for key in keys}
    return " ".join(f"parallel.{key}={in_words(value)}" for key, value in values.items())
