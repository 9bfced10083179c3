"""What torch answers once the CPU platform is installed."""

import subprocess
import sys

import pytest
import torch

from megarl.platform import current, install
from megarl.platform.cpu.factories import FACTORIES

install()

CALLS = {
    "arange": (3,),
    "as_tensor": ([1.0],),
    "empty": (2,),
    "empty_like": (torch.ones(2),),
    "empty_strided": ((2,), (1,)),
    "eye": (2,),
    "full": ((2,), 1.0),
    "full_like": (torch.ones(2), 1.0),
    "linspace": (0, 1, 3),
    "ones": (2,),
    "ones_like": (torch.ones(2),),
    "rand": (2,),
    "rand_like": (torch.ones(2),),
    "randint": (0, 3, (2,)),
    "randn": (2,),
    "randn_like": (torch.ones(2),),
    "randperm": (3,),
    "tensor": ([1.0],),
    "zeros": (2,),
    "zeros_like": (torch.ones(2),),
}


def test_cuda_stays_absent() -> None:
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0
    assert not torch.cuda.is_initialized()


def test_platform_is_the_cpu() -> None:
    platform = current()
    assert (platform.name, platform.device, platform.dist_backend) == ("cpu", torch.device("cpu"), "gloo")
    assert platform.devices_here is None
    platform.use_device()
    platform.synchronize()


def test_install_twice_patches_once() -> None:
    empty, tensor_type = torch.empty, torch.Tensor.type
    assert install() is install()
    assert torch.empty is empty
    assert torch.Tensor.type is tensor_type


def test_current_device_is_the_cpu() -> None:
    torch.cuda.set_device(0)
    torch.cuda.synchronize()
    with torch.cuda.device(0):
        assert str(torch.cuda.current_device()) == "cpu"
    assert not torch.cuda.is_current_stream_capturing()


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda", 1)])
def test_factories_make_cpu_tensors(name: str, device: object) -> None:
    assert getattr(torch, name)(*CALLS[name], device=device).device == torch.device("cpu")


def test_pinned_memory_is_not_asked_for() -> None:
    assert not torch.zeros(2, pin_memory=True).is_pinned()


def test_device_contexts_still_work() -> None:
    with torch.device("meta"):
        assert torch.empty(2).device.type == "meta"
        assert torch.nn.Linear(2, 2).weight.device.type == "meta"


def test_other_devices_are_left_alone() -> None:
    assert torch.zeros(2, device="meta").device.type == "meta"


def test_cuda_of_tensors_and_modules_is_the_identity() -> None:
    tensor, module = torch.ones(2), torch.nn.Linear(2, 2)
    assert tensor.cuda() is tensor
    assert module.cuda() is module


def test_type_has_the_name_on_cuda() -> None:
    assert torch.ones(2).type() == "torch.cuda.FloatTensor"
    assert torch.ones(2).bfloat16().type() == "torch.cuda.BFloat16Tensor"
    assert torch.ones(2).type(torch.float64).dtype == torch.float64


def test_device_generator_is_the_cpu_generator() -> None:
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    first = torch.rand(3)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.rand(3, generator=torch.Generator().manual_seed(5)), first)
    assert torch.cuda.default_generators[0] is torch.default_generator


def test_random_state_tracker_keeps_streams_apart() -> None:
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    tracker = CudaRNGStatesTracker()
    tracker.add("model", 7)
    torch.manual_seed(1)
    outside = torch.rand(2)
    with tracker.fork("model"):
        inside = torch.rand(2)
    torch.manual_seed(1)
    with tracker.fork("model"):
        later = torch.rand(2)
    assert torch.equal(torch.rand(2), outside)
    expected = torch.rand(4, generator=torch.Generator().manual_seed(7))
    assert torch.equal(torch.cat([inside, later]), expected)


def test_compiled_functions_run_their_python_body() -> None:
    bodies = []

    @torch.compile
    def twice(x: torch.Tensor) -> torch.Tensor:
        bodies.append(x.is_cpu)
        return x * 2

    assert twice(torch.ones(1)).item() == 2
    assert twice(torch.ones(1)).item() == 2
    assert bodies == [True, True]


def test_compile_takes_options_and_loads_no_compiler() -> None:
    """Both forms, in a process of its own: this one's other tests may load Inductor."""
    code = (
        "import sys, megarl.platform as p; p.install()\n"
        "import torch, megatron.core\n"
        "assert torch.compile(len, dynamic=True)([1]) == 1 == torch.compile(fullgraph=True)(len)([1])\n"
        "print('torch._inductor.compile_fx' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stderr
