"""What a run reads beside its recipe, by digests: a resumed run must find it as it was."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from megarl.config.errors import RunFolderError
from megarl.config.refusal import in_words
from megarl.data.content import content_fingerprint
from megarl.data.fingerprint import vocabulary_fingerprint

if TYPE_CHECKING:
    from megarl.loop.run import Run


def inputs_of(run: "Run") -> dict[str, str]:
    """Digests of the problems and of the vocabulary, for a checkpoint."""
    return {"data": content_fingerprint(run.source), "tokenizer": vocabulary_fingerprint(run.tokenizer)}


def check_inputs(run: "Run", manifest: Mapping[str, Any]) -> None:
    """Refuses to go on with other problems or another vocabulary. Args: manifest: of what it goes on from.

    Raises:
        RunFolderError: they are others.
    """
    now = run.inputs
    # a checkpoint of an older release tells nothing of them
    changed = [name for name, digest in manifest.get("inputs", {}).items() if now[name] != digest]
    if changed:
        what, mend = _problems(run) if changed[0] == "data" else _vocabulary(run)
        raise RunFolderError(
            f"{what} than when the run in output_dir={run.recipe.output_dir} was saved, which goes on from a "
            f"place in those; {mend}, or name another output_dir to train anew."
        )


def _problems(run: "Run") -> tuple[str, str]:
    data = run.recipe.data
    if data.path is None:
        return f"data.source={data.source} gives other problems", "install the release of its package as it was then"
    other = "" if data.eval_path is None else f" or data.eval_path={in_words(data.eval_path)}"
    return f"data.path={in_words(data.path)}{other} holds other rows", "restore the file"


def _vocabulary(run: "Run") -> tuple[str, str]:
    tokenizer = run.recipe.tokenizer
    place = f"kind={tokenizer.kind}" if tokenizer.path is None else f"path={in_words(tokenizer.path)}"
    return f"tokenizer.{place} has other tokens", "restore it"
