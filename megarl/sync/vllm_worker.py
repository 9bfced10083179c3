"""What runs inside a vLLM worker: a weight-transfer engine of vLLM's own kind that reads megarl's buckets.

vLLM imports this module by name, through --worker-extension-cls, before it loads a model. Nothing else does.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype

from megarl.sync.digest import digest
from megarl.sync.readers import open_reader
from megarl.sync.transport import Reader

BACKEND = "megarl"
"""Its name in --weight-transfer-config."""


@dataclass
class InitInfo(WeightTransferInitInfo):
    """What `Sender.describe` tells."""

    transport: str
    options: dict[str, Any] = field(default_factory=dict)
    delta: bool = False


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One bucket: what `Sender.write` tells, and the tensors whose digests are wanted (None: of all)."""

    where: dict[str, Any]
    digests_of: list[str] | None = None


class BucketReceiver(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads buckets into the model, layer by layer, and keeps the digests of what it was given."""

    init_info_cls, update_info_cls = InitInfo, UpdateInfo
    supports_draft_weight_update = False

    _reader: Reader
    digests: dict[str, str]
    """Of this update's tensors, by name."""
    seconds: dict[str, float]
    """Of this update: until buckets were here, for putting them into the model, and for the layers' last touches."""
    left_out: list[str]
    """The model's own names of the layers that the newest update brought nothing for."""

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Opens the transport."""
        self._reader = open_reader(asdict(init_info))
        self.digests, self.left_out = {}, []
        if current_platform.is_cpu() and self.model_config.quantization == "compressed-tensors":
            _hold_scales(self.model)

    def start_weight_update(self) -> None:
        """Readies every layer for being loaded again."""
        self.digests, self.left_out = {}, []
        self.seconds = dict.fromkeys(("receive", "load", "finish"), 0.0)
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                # a part of it came in an update that was left in the middle
                info.loaded_weights.clear()
                info.load_numel = 0
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Loads one bucket. The base class would ask for an accelerator, which a CPU has not."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """See `update_weights`.

        Kernels are made for torch's default dtype, which vLLM sets while it loads a model for the first time.
        """
        began = time.perf_counter()
        with self._reader.read(update_info.where) as tensors, ThreadPoolExecutor(1) as pool:
            here = time.perf_counter()
            # beside the loading, which only reads what it is given
            digests = pool.submit(_digests, tensors, update_info.digests_of)
            with set_default_torch_dtype(self.model_config.dtype):
                self.model.load_weights(tensors.items())
            self._keep_what_waits()
            self.digests |= digests.result()
        self.seconds["receive"] += here - began
        self.seconds["load"] += time.perf_counter() - here

    def _keep_what_waits(self) -> None:
        """Copies what layers that are not whole yet hold of the bucket, whose bytes are about to go."""
        for layer in self.model.modules():
            for _, bound in get_layerwise_info(layer).loaded_weights:
                for name, value in bound.arguments.items():
                    if isinstance(value, Tensor) and name != "param":
                        bound.arguments[name] = value.clone()

    def finish_weight_update(self) -> None:
        """Puts the loaded layers to use; a layer that got nothing keeps what it had, and is noted."""
        began = time.perf_counter()
        empty = [
            (name, layer)
            for name, layer in self.model.named_modules()
            if get_layerwise_info(layer).can_load() and get_layerwise_info(layer).load_numel == 0
        ]
        with set_default_torch_dtype(self.model_config.dtype):
            finalize_layerwise_reload(self.model, self.model_config)
        without = {id(layer) for _, layer in empty}
        loaded = {
            id(parameter)
            for layer in self.model.modules()
            if id(layer) not in without
            for parameter in layer.parameters(recurse=False)
        }
        for name, layer in empty:
            own = [id(parameter) for parameter in layer.parameters(recurse=False)]
            if not loaded.issuperset(own):
                self.left_out.append(name)
            elif own:
                # a tied head: its weight is the embedding's, but what a CPU kernel packed from it is still the old one
                layer.quant_method.process_weights_after_loading(layer)
        self.seconds["finish"] += time.perf_counter() - began

    def shutdown(self) -> None:
        """Nothing to end: each bucket is opened and closed on its own."""


def _hold_scales(model: torch.nn.Module) -> None:
    """Keeps each layer's scales alive from one update to the next.

    The CPU's INT8 kernel keeps the address of the scales that it was made from. In an update those are copied into the
    model's own and freed, and the kernel then reads what comes to lie there.
    """
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if method is not None and not hasattr(method, "megarl_holds"):
            method.process_weights_after_loading = partial(_process_and_hold, method.process_weights_after_loading)
            method.megarl_holds = True


def _process_and_hold(process: Callable[[torch.nn.Module], None], layer: torch.nn.Module) -> None:
    process(layer)
    vars(layer)["megarl_scales"] = [own.data for name, own in layer.named_parameters(recurse=False) if name != "weight"]


def _digests(tensors: Mapping[str, Tensor], names: list[str] | None) -> dict[str, str]:
    """Of the tensors that are named, or of all."""
    return {name: digest(tensor) for name, tensor in tensors.items() if names is None or name in names}


class WorkerExtension:
    """Methods that vLLM adds to its worker, for /collective_rpc."""

    def megarl_abandon_update(self) -> None:
        """Forgets an update that was begun and not finished; the next one brings every layer its weights."""
        self._weight_update_active = False

    def megarl_digests(self) -> dict[str, str]:
        """Digests of what the update brought, by name."""
        return dict(self.weight_transfer_engine.digests)  # type: ignore[attr-defined]

    def megarl_left_out(self) -> list[str]:
        """Layers that the newest update brought nothing for."""
        return list(self.weight_transfer_engine.left_out)  # type: ignore[attr-defined]

    def megarl_seconds(self) -> dict[str, float]:
        """What the newest update took here, by part."""
        return dict(self.weight_transfer_engine.seconds)  # type: ignore[attr-defined]


WeightTransferEngineFactory.register_engine(BACKEND, BucketReceiver)
