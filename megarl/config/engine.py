"""Recipe sections for engines that are servers, and for how weights reach them."""

from dataclasses import dataclass
from typing import Optional

from megarl.config.fields import LONGEST_S, key

QUANTIZATIONS = (
    "none",
    "fp8_per_tensor",
    "fp8_per_channel",
    "fp8_per_block",
    "mxfp8",
    "int8",
)
"""vLLM's own names of what it quantises by itself, from weights in `engine.dtype`; 'int8' is made by the trainer."""


@dataclass
class EngineConfig:
    """The servers behind `rollout.engine`; the embedded engine has none."""

    urls: list[str] = key(
        factory=list,
        doc="Servers that run already, such as http://127.0.0.1:8000; where it is empty, the run starts its own.",
    )
    replicas: int = key(1, "Servers that the run starts; each holds the whole model.", low=1)
    tensor: int = key(1, "GPUs, or processes on a CPU, that one server splits the model over.", low=1)
    dtype: str = key(
        "auto",
        "What the servers compute in; 'auto' is the trainer's `precision.dtype`.",
        choices=("auto", "fp32", "bf16", "fp16"),
    )
    quantization: str = key(
        "none",
        "Precision of the servers' linear layers below `engine.dtype`; the weights are quantised again at each sync, "
        "by the engine, or for 'int8' by the trainer.",
        choices=QUANTIZATIONS,
    )
    max_concurrent: int = key(64, "Requests that one server works on at once; more of them wait here.", low=1)
    kv_cache_gib: Optional[float] = key(
        None, "Memory for keys and values, in GiB; null leaves it to the engine on a GPU, and is 1 on a CPU.", above=0
    )
    python: Optional[str] = key(
        None, "Python interpreter of the environment that has the engine; null is the one that runs megarl."
    )
    arguments: list[str] = key(factory=list, doc="Further arguments of the server's command line, as they are.")
    start_timeout_s: float = key(600.0, "Longest wait for a server to come up, in seconds.", above=0, high=LONGEST_S)
    request_timeout_s: float = key(600.0, "Longest wait for one response, in seconds.", above=0, high=LONGEST_S)
    update_timeout_s: float = key(
        120.0,
        "Longest wait for a server to load one bucket of weights, in seconds; one that takes longer hangs.",
        above=0,
        high=LONGEST_S,
    )
    health_timeout_s: float = key(
        10.0, "A server that says nothing for so many seconds is taken for hung.", above=0, high=LONGEST_S
    )
    restarts: int = key(3, "Times that a server which died or hangs is started again, in the whole run.", low=0)
    allow_remote: bool = key(False, "Lets `engine.urls` name other machines; the servers then need a token.")
    token_variable: str = key(
        "MEGARL_ENGINE_TOKEN", "Environment variable with the servers' token; no token is ever in a recipe."
    )

    def dtype_beside(self, trainer: str) -> str:
        """What the servers compute in beside a trainer of that `precision.dtype`."""
        return trainer if self.dtype == "auto" else self.dtype


@dataclass
class SyncConfig:
    """Weights from the trainer to the servers."""

    transport: str = key(
        "shared_memory",
        "How the bytes travel: through memory that the processes on this machine map, through a folder that both read, "
        "by a broadcast to all workers (NCCL between GPUs, gloo between CPUs), or as GPU memory that the workers on "
        "this machine open.",
        choices=("shared_memory", "disk", "broadcast", "cuda_ipc"),
    )
    delta: bool = key(
        False, "Sends only what changed, losslessly; trainer and workers each keep the whole model on the host for it."
    )
    timeout_s: float = key(
        120.0,
        "Longest wait for a worker to come for a bucket with transport=broadcast, in seconds.",
        above=0,
        high=LONGEST_S,
    )
    folder: Optional[str] = key(None, "Folder for transport=disk; null is one in `output_dir`.")
    bucket_mib: int = key(
        256, "Size of a bucket, in MiB; up to two exist at once, and a layer that is larger is one bucket.", low=1
    )
    verify: str = key(
        "sampled",
        "Digests compared after a sync: 'sampled' compares all after the first sync and after a restart, then a "
        "sixteenth of the tensors in turn; 'always' compares all each time.",
        choices=("sampled", "always"),
    )
