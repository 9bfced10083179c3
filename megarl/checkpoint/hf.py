"""Weights as a folder in Hugging Face layout, which transformers, vLLM and SGLang load."""

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from megarl.checkpoint.shards import SHARD_BYTES, ShardWriter
from megarl.config.model import ModelConfig
from megarl.data.tokenizer import save_tokenizer
from megarl.megatron.hf_folder import HFFolder
from megarl.megatron.models import FAMILIES
from megarl.megatron.policy import FrozenModel
from megarl.observe.files import sync_to_disk

_BESIDE_THE_WEIGHTS = (".json", ".txt", ".model", ".jinja")
"""Endings of the files that a folder holds beside its weights: configurations and the tokenizer."""


def export_hf(
    policy: FrozenModel, folder: Path, tokenizer: PreTrainedTokenizerFast, shard_bytes: int = SHARD_BYTES
) -> None:
    """Writes config.json, the weights and the tokenizer, beside first, then renamed over `folder`. Collective.

    Extra memory is one gathered parameter on every rank, and one shard of the host's on the main one, which writes.

    Args:
        policy: the model; its weights keep their dtype.
        folder: replaced where it exists.
        tokenizer: is saved beside the weights, and tells the configuration its special tokens.
        shard_bytes: largest file of weights; a model of less is one file.
    """
    tensors = policy.export()
    if policy.layout.is_main:
        write_hf(tensors, policy.recipe.model, policy.vocab_size, folder, tokenizer, shard_bytes)
    else:
        for _ in tensors:
            pass
    dist.barrier()


def write_hf(
    tensors: Iterable[tuple[str, Tensor]],
    model: ModelConfig,
    vocab_size: int,
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """What `export_hf` writes, from tensors that come in its order. Not collective, where their source is not."""
    with replacing(folder) as beside:
        writer = ShardWriter(beside, shard_bytes)
        for name, tensor in tensors:
            writer.add(name, tensor)
        writer.finish()
        _write_config(model, vocab_size, tokenizer, str(writer.dtype).removeprefix("torch."), beside)
        save_tokenizer(tokenizer, beside)


def copy_hf(source: HFFolder, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes another folder of the same model, sharded anew; the peak of host memory is one shard and one tensor.

    Args:
        source: the folder to read; its configuration and tokenizer are copied as they are.
        folder: replaced where it exists.
        shard_bytes: largest file of weights.
    """
    with replacing(folder) as beside:
        writer = ShardWriter(beside, shard_bytes)
        for name in source.files:
            writer.add(name, source.read(name))
        for path in sorted(source.path.iterdir()):
            if path.is_file() and path.suffix in _BESIDE_THE_WEIGHTS and not path.name.endswith(".index.json"):
                shutil.copyfile(path, beside / path.name)
        writer.finish()


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of `folder` on the way out; after an error it stays beside it."""
    beside, before = (folder.with_name(f".{folder.name}.{kind}") for kind in ("writing", "replaced"))
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    yield beside
    for path in (*beside.iterdir(), beside):
        sync_to_disk(path)
    shutil.rmtree(before, ignore_errors=True)
    if folder.exists():
        folder.rename(before)
    beside.rename(folder)
    sync_to_disk(folder.parent)
    shutil.rmtree(before, ignore_errors=True)


def _write_config(
    model: ModelConfig, vocab_size: int, tokenizer: PreTrainedTokenizerFast, dtype: str, folder: Path
) -> None:
    config = FAMILIES[model.family].hf_config(model, vocab_size)
    special: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config.update({**special, "bos_token_id": None, "dtype": dtype})
    held = config.to_dict()
    # engines read the names that transformers 5 no longer writes, such as num_experts
    held |= {alias: held[own] for alias, own in config.attribute_map.items() if own in held}
    (folder / "config.json").write_text(json.dumps(held, indent=1, sort_keys=True, default=str))
