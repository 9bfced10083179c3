"""Every planted fault is named first, in fp32; a clean pair of sides has no cause. The self-test does more of both."""

from dataclasses import replace

import pytest

from megarl.diagnose.selftest.fault import Fault
from megarl.diagnose.selftest.model_faults import quantised_engine
from megarl.diagnose.selftest.run import FAULTS, clean_case, faulty_case


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named_first(fault: Fault) -> None:
    outcome = faulty_case(fault, "fp32", 7)
    assert outcome.right, outcome.said


def test_an_output_layer_that_rounds_less_than_the_layers_before_it_is_named() -> None:
    """Its rounding is a third of theirs: sizes of errors are alike, and the grid of the logits tells."""
    (fault,) = [fault for fault in FAULTS if fault.name == "output layer in another dtype"]
    outcome = faulty_case(fault, "bf16", 2)
    assert outcome.right, outcome.said


@pytest.mark.parametrize("seed", [4, 5])
def test_a_scale_a_tensor_is_told_from_a_scale_a_block_by_what_is_decoded_together(seed: int) -> None:
    """Blocks are as large as these weights, so that the inputs' scales alone tell."""
    (fault,) = [fault for fault in FAULTS if fault.name == "fp8"]
    planted = replace(fault, plant=lambda scene: quantised_engine(scene, "fp8_tensor"))
    outcome = faulty_case(planted, "bf16", seed)
    assert outcome.right, outcome.said


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_clean_pair_raises_no_alarm(dtype: str) -> None:
    outcome = clean_case("fp32" if dtype == "fp32" else "bf16", 3)
    assert outcome.right, outcome.said
