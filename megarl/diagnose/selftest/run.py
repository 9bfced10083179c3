"""`megarl drift selftest`: every fault, in fp32 and bf16, over seeds; clean cases between."""

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from megarl.diagnose.selftest import model_faults, sampling_faults, token_faults
from megarl.diagnose.selftest.fault import Fault
from megarl.diagnose.selftest.scene import Scene
from megarl.drift.diagnosis import Diagnosis, Sampling, diagnose
from megarl.drift.diagnosis.computation import Dtype

FAULTS: tuple[Fault, ...] = (*sampling_faults.FAULTS, *token_faults.FAULTS, *model_faults.FAULTS)
DTYPES: tuple[Dtype, ...] = ("fp32", "bf16")
_CLEAN = -1
_TOLD_EVERY = 50
_FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
_SAMPLINGS = (Sampling(), Sampling(0.7), Sampling(top_p=0.9), Sampling(1.2, top_k=20), Sampling(0.6, top_p=0.95))


@dataclass(frozen=True)
class Outcome:
    """One case.

    Attributes:
        name: of the fault, or 'clean'.
        dtype: of both sides.
        seed: of the case.
        right: whether the first finding is the fault, with what it must say; of a clean case, whether there is none.
        said: the first finding in short.
    """

    name: str
    dtype: Dtype
    seed: int
    right: bool
    said: str


def faulty_case(fault: Fault, dtype: Dtype, seed: int) -> Outcome:
    """Plants a fault and diagnoses it."""
    scene = Scene.build(fault.families[seed % len(fault.families)], seed, dtype)
    planted = fault.plant(scene)
    diagnosis = diagnose(planted.rollouts, scene.model, scene.side)
    first = diagnosis.findings[0] if diagnosis.findings else None
    right = (
        first is not None and first.cause == fault.cause and first.side == fault.side and planted.says in first.evidence
    )
    return Outcome(fault.name, dtype, seed, right, _short(diagnosis))


def clean_case(dtype: Dtype, seed: int) -> Outcome:
    """Diagnoses a pair of sides without a fault."""
    scene = Scene.build(
        _FAMILIES[seed % len(_FAMILIES)], 100 + seed, dtype, _SAMPLINGS[seed // len(_FAMILIES) % len(_SAMPLINGS)]
    )
    diagnosis = diagnose(scene.rollouts(), scene.model)
    return Outcome("clean", dtype, seed, not diagnosis.findings, _short(diagnosis))


def _short(diagnosis: Diagnosis) -> str:
    if not diagnosis.findings:
        return "nothing"
    first = diagnosis.findings[0]
    return f"{first.cause} ({first.side}): {first.evidence}"


def selftest(seeds: int, clean: int, processes: int) -> int:
    """Prints a table of the faults and how many of their cases were named right.

    Args:
        seeds: cases of each fault in each precision.
        clean: cases without a fault, over both precisions.
        processes: that share the cases.

    Returns:
        0, or 1 where a fault was missed or a clean case raised an alarm.
    """
    began = time.perf_counter()
    console = Console(highlight=False)
    cases = [(number, dtype, seed) for seed in range(seeds) for number in range(len(FAULTS)) for dtype in DTYPES]
    cases += [(_CLEAN, DTYPES[number % 2], number // 2) for number in range(clean)]
    outcomes = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        for outcome in pool.map(_case, cases):
            outcomes.append(outcome)
            if not outcome.right:
                where = f"{outcome.name}, {outcome.dtype}, seed {outcome.seed}"
                console.print(f"missed: {where}: found {outcome.said}", markup=False, soft_wrap=True)
            if len(outcomes) % _TOLD_EVERY == 0:
                console.print(f"{len(outcomes)} of {len(cases)} cases")
    _print(console, outcomes, time.perf_counter() - began)
    return 0 if all(outcome.right for outcome in outcomes) else 1


def _case(case: tuple[int, Dtype, int]) -> Outcome:
    number, dtype, seed = case
    return clean_case(dtype, seed) if number == _CLEAN else faulty_case(FAULTS[number], dtype, seed)


def _one_thread() -> None:
    torch.set_num_threads(1)


def _print(console: Console, outcomes: list[Outcome], seconds: float) -> None:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("planted")
    for dtype in DTYPES:
        table.add_column(dtype, justify="right", no_wrap=True)
    for name in dict.fromkeys(outcome.name for outcome in outcomes):
        counts = []
        for dtype in DTYPES:
            cases = [outcome.right for outcome in outcomes if outcome.name == name and outcome.dtype == dtype]
            counts.append(f"{sum(cases)}/{len(cases)}")
        table.add_row(name, *counts)
    console.print(table)
    right = sum(outcome.right for outcome in outcomes)
    console.print(f"{right} of {len(outcomes)} cases right, in {seconds:.0f} seconds.")
