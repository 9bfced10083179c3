"""Weights of a folder in Hugging Face layout: one file, or shards with an index. One tensor is in memory at a time."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megarl.config.errors import UserError
from megarl.config.model import ModelConfig
from megarl.config.refusal import in_words, refusal
from megarl.megatron.models import FAMILIES
from megarl.megatron.models.dense import EMBEDDING, HEAD
from megarl.megatron.weights import ReadTensor

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_VOCABULARY = (EMBEDDING, HEAD)
_DTYPES = ("BF16", "F16", "F32", "F64")
"""What weights may be in, as safetensors names them: others would need scales that are not read here."""
_NO_WEIGHTS = ".rotary_emb.inv_freq"
"""Ending of what old exports hold beside the weights, and transformers passes over too."""
_ROWS = 8192
"""Rows of two heads that are compared at once."""


@dataclass(frozen=True)
class HFFolder:
    """Where each tensor of a folder is.

    Attributes:
        path: the folder.
        key: what the user gave the folder as, for refusals.
        files: tensor name to the file that holds it.
    """

    path: Path
    key: str
    files: dict[str, Path]

    def read(self, name: str) -> Tensor:
        """The full tensor, on the CPU; its file's pages are mapped for as long as it lives, and no longer.

        Raises:
            KeyError: no file holds it.
        """
        # opened anew each time: an open file keeps every page resident that was read through it
        with safe_open(self.files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        """Some rows of a tensor."""
        with safe_open(self.files[name], framework="pt") as file:
            tensor: Tensor = file.get_slice(name)[begin:end]
        return tensor

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, from the files' headers.

        Raises:
            RecipeError: a file cannot be read or is cut short, or its tensors are not those that the index says it has,
                or they are no floating-point numbers of 16 bits or more.
        """
        by_file: dict[Path, list[str]] = {}
        for name, file in self.files.items():
            by_file.setdefault(file, []).append(name)
        shapes: dict[str, tuple[int, ...]] = {}
        for path, names in by_file.items():
            with _opened(self.path, self.key, path) as file:
                held = set(file.keys())
                for name in sorted(held ^ set(names)):
                    reason = (
                        f"holds {path.name}, which has {name}, and an {INDEX} that does not look for it there"
                        if name in held
                        else f"holds an {INDEX} that looks for {name} in {path.name}, which lacks it"
                    )
                    raise refusal(self.key, str(self.path), reason, "copy both again")
                for name in names:
                    header = file.get_slice(name)
                    if (dtype := header.get_dtype()) not in _DTYPES:
                        reason = f"holds {name} in {dtype}"
                        raise refusal(self.key, str(self.path), reason, f"give weights in one of {', '.join(_DTYPES)}")
                    shapes[name] = tuple(header.get_shape())
        return shapes


def hf_folder(folder: Path, key: str = "model.init_from") -> HFFolder:
    """Finds the tensors of a folder.

    Raises:
        RecipeError: there are no weights, or both a single file and an index, or the index cannot be right.
    """
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file() and index.is_file():
        raise refusal(key, str(folder), f"holds both {SINGLE} and {INDEX}", "take the one away that is out of date")
    if index.is_file():
        return HFFolder(folder, key, _indexed(folder, key))
    if single.is_file():
        with _opened(folder, key, single) as file:
            return HFFolder(folder, key, dict.fromkeys(file.keys(), single))
    raise refusal(key, str(folder), f"holds neither {SINGLE} nor {INDEX}", "give a folder in Hugging Face layout")


def saved_weights(folder: Path) -> ReadTensor:
    """Reads the weights of a folder in Hugging Face layout, one tensor at a time.

    Raises:
        RecipeError: as `hf_folder`.
        KeyError: (from the reader) no file holds the tensor.
    """
    return hf_folder(folder).read


def check_saved_weights(
    folder: Path, model: ModelConfig, vocab_size: int, key: str = "model.init_from", *, more_rows: bool = True
) -> HFFolder:
    """Looks at the names and shapes in a folder of weights; of tensors it reads a head that should be tied alone.

    Args:
        folder: in Hugging Face layout.
        model: its shape.
        vocab_size: tokens.
        key: what the user gave the folder as.
        more_rows: whether embedding and head may have more rows than tokens.

    Raises:
        RecipeError: a file cannot be read, a tensor of the model is missing or has another shape, there are tensors
            that the model has not, or the head is another tensor than the embedding that it should be.
    """
    found = hf_folder(folder, key)
    shapes = found.shapes()
    names = {HEAD}
    for name, shape, _ in FAMILIES[model.family].tensor_shapes(model, vocab_size):
        names.add(name)
        held = shapes.get(name)
        if held is None:
            raise _missing(name, found)
        rows_suffice = held[:1] >= shape[:1] if more_rows and name in _VOCABULARY else held[:1] == shape[:1]
        if not rows_suffice or held[1:] != shape[1:]:
            reason = f"holds {name} as {list(held)}, and the model has {list(shape)}"
            raise refusal(key, str(folder), reason, "give weights and a config.json that belong together")
    if more := sorted(name for name in shapes.keys() - names if not name.endswith(_NO_WEIGHTS)):
        reason = f"holds {in_words(more[0])}, which its model has no place for ({len(more)} such)"
        raise refusal(key, str(folder), reason, "give weights and a config.json that belong together")
    if model.tie_embeddings and HEAD in shapes:
        _check_tied(found, shapes)
    return found


def _missing(name: str, folder: HFFolder) -> UserError:
    if name == HEAD:
        reason = f"holds no tensor {HEAD}, and its model is untied"
        fix = "give a whole model, or set tie_word_embeddings to true in its config.json if its head is its embedding"
        return refusal(folder.key, str(folder.path), reason, fix)
    return refusal(folder.key, str(folder.path), f"holds no tensor {name}", "give a whole model")


def _check_tied(folder: HFFolder, shapes: dict[str, tuple[int, ...]]) -> None:
    """Some exports of tied models hold the head too; it must be the embedding, since it is not read."""
    rows = shapes[EMBEDDING][0]
    if shapes[HEAD] != shapes[EMBEDDING] or not all(
        torch.equal(folder.rows(HEAD, begin, begin + _ROWS), folder.rows(EMBEDDING, begin, begin + _ROWS))
        for begin in range(0, rows, _ROWS)
    ):
        reason = f"holds an {HEAD} that is not {EMBEDDING}, and its model is tied"
        raise refusal(folder.key, str(folder.path), reason, "set tie_word_embeddings to false in its config.json")


def _indexed(folder: Path, key: str) -> dict[str, Path]:
    try:
        held = json.loads((folder / INDEX).read_text(), object_pairs_hook=_once)
    except (OSError, ValueError, RecursionError) as error:
        reason = f"holds an {INDEX} that cannot be read ({error})"
        raise refusal(key, str(folder), reason, "copy it again") from error
    files = held.get("weight_map") if isinstance(held, dict) else None
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        reason = f"holds an {INDEX} without a weight_map from tensors to files"
        raise refusal(key, str(folder), reason, "copy it again")
    # asking for each by its name would fail on names that no file system takes
    beside = {path.name for path in folder.iterdir() if path.is_file()}
    for file in sorted(set(files.values())):
        if Path(file).name != file or file not in beside:
            reason = f"holds an {INDEX} that names {in_words(file)}, which is not there"
            raise refusal(key, str(folder), reason, "copy the whole folder")
    return {name: folder / file for name, file in files.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON mapping, of which Python would take the last of two equal names."""
    held = dict(pairs)
    if len(held) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is there twice")
    return held


def _opened(folder: Path, key: str, file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        reason = f"holds {file.name}, which cannot be read ({error})"
        raise refusal(key, str(folder), reason, "copy it again") from error
