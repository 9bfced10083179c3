"""Cross-field checks of the policy's shape, its layout over processes, and its tokenizer."""

import os

from megarl.config.check_init import init_folder_is_this_model
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe


def layout_divides_world(recipe: Recipe) -> None:
    """Tensor, pipeline and context parallelism together must divide the processes evenly."""
    parallel = recipe.parallel
    ranks = parallel.tensor * parallel.pipeline * parallel.context
    if parallel.world_size % ranks:
        reason = f"is not a multiple of parallel.tensor*parallel.pipeline*parallel.context={ranks}"
        nearest = max(1, round(parallel.world_size / ranks)) * ranks
        raise refusal("parallel.world_size", parallel.world_size, reason, f"give a multiple of it, such as {nearest}")


def sequence_parallel_has_ranks(recipe: Recipe) -> None:
    """Sequence parallelism is over the tensor-parallel ranks."""
    if recipe.parallel.sequence and recipe.parallel.tensor == 1:
        reason = "shares tokens over tensor-parallel ranks, and parallel.tensor=1 has none"
        raise refusal("parallel.sequence", True, reason, "set it to false or parallel.tensor above 1")


def tensor_divides_shape(recipe: Recipe) -> None:
    """Each tensor-parallel rank must hold the same share of the heads and of the dense feed-forward layers."""
    tensor = recipe.parallel.tensor
    for name in ("num_attention_heads", *(("ffn_hidden_size",) if recipe.model.has_dense_layers else ())):
        size = getattr(recipe.model, name)
        if size % tensor:
            raise refusal("parallel.tensor", tensor, f"does not divide model.{name}={size}", "give a divisor of it")


def groups_fit_heads(recipe: Recipe) -> None:
    """Every query group must have the same number of heads."""
    groups, heads = recipe.model.num_query_groups, recipe.model.num_attention_heads
    if heads % groups:
        reason = f"does not divide model.num_attention_heads={heads}"
        raise refusal("model.num_query_groups", groups, reason, "give a divisor of it")


def groups_fit_tensor(recipe: Recipe) -> None:
    """Query groups are split over tensor-parallel ranks, or shared by whole numbers of them (Megatron's rule)."""
    groups, tensor = recipe.model.num_query_groups, recipe.parallel.tensor
    if groups % tensor and tensor % groups:
        reason = f"is neither a multiple nor a divisor of parallel.tensor={tensor}"
        raise refusal("model.num_query_groups", groups, reason, "change one of the two")
    if recipe.model.qkv_size % tensor:
        reason = (
            f"makes {recipe.model.qkv_size} channels of query, key and value (model.head_dim={recipe.model.head_dim}), "
            f"which parallel.tensor={tensor} does not divide"
        )
        raise refusal("model.num_query_groups", groups, reason, "give more of them or fewer tensor ranks")


def head_dim_is_even(recipe: Recipe) -> None:
    """Rotary embedding turns pairs of channels."""
    size = recipe.model.head_dim
    if size % 2:
        reason = "is odd and rotary embedding turns pairs of channels"
        raise refusal("model.head_dim", size, reason, f"give {size - 1} or {size + 1}")


def stages_hold_the_layers(recipe: Recipe) -> None:
    """Every pipeline stage holds the same number of layers, or the number that the recipe gives it."""
    parallel, layers = recipe.parallel, recipe.model.num_layers
    given = parallel.pipeline_layers
    if given is not None:
        if len(given) != parallel.stages:
            reason = f"does not name the layers of parallel.pipeline*parallel.virtual={parallel.stages} stages"
            raise refusal("parallel.pipeline_layers", given, reason, f"give {parallel.stages} numbers")
        if min(given) < 1 or sum(given) != layers:
            reason = f"does not share out model.num_layers={layers}"
            raise refusal("parallel.pipeline_layers", given, reason, f"give numbers from 1 up whose sum is {layers}")
    elif layers % parallel.stages:
        name, value = ("pipeline", parallel.pipeline) if parallel.virtual == 1 else ("virtual", parallel.virtual)
        what = (
            "does not divide"
            if parallel.virtual == 1
            else f"times parallel.pipeline={parallel.pipeline} does not divide"
        )
        fix = "give a divisor of it or parallel.pipeline_layers"
        raise refusal(f"parallel.{name}", value, f"{what} model.num_layers={layers}", fix)


def virtual_stages_have_a_pipeline(recipe: Recipe) -> None:
    """Interleaving hides a pipeline's bubble; without one there is nothing to hide."""
    if recipe.parallel.virtual > 1 and recipe.parallel.pipeline == 1:
        reason = "interleaves the stages of a pipeline, and parallel.pipeline=1 is none"
        raise refusal("parallel.virtual", recipe.parallel.virtual, reason, "set it to 1 or parallel.pipeline above 1")


def rope_band_is_ordered(recipe: Recipe) -> None:
    """Between the two factors the scaling goes over from none to full."""
    low, high = recipe.model.rope_low_freq_factor, recipe.model.rope_high_freq_factor
    if high <= low:
        reason = f"is not above model.rope_low_freq_factor={low}"
        raise refusal("model.rope_high_freq_factor", high, reason, f"give more than {low}, such as {4 * low}")


def tokenizer_path_fits_kind(recipe: Recipe) -> None:
    """A tokenizer folder is needed for kind=hf, and would be ignored for any other kind."""
    kind, path = recipe.tokenizer.kind, recipe.tokenizer.path
    if kind != "hf":
        if path is not None:
            reason = f"is not read with tokenizer.kind={kind}"
            raise refusal("tokenizer.path", path, reason, "set kind=hf or drop the path")
        return
    if path is None:
        raise refusal("tokenizer.path", None, "is needed with tokenizer.kind=hf", "give the tokenizer's folder")
    if not os.path.isdir(path):
        raise refusal("tokenizer.path", path, "is not a folder", "give the folder of a Hugging Face tokenizer")


def characters_are_tokens(recipe: Recipe) -> None:
    """A character tokenizer needs distinct characters, and distinct words of several characters."""
    if recipe.tokenizer.kind != "characters":
        return
    alphabet, words = recipe.tokenizer.alphabet, recipe.tokenizer.words
    if not alphabet:
        raise refusal("tokenizer.alphabet", alphabet, "is empty", "list the characters that prompts and responses use")
    twice = [character for character in alphabet if alphabet.count(character) > 1]
    if twice:
        raise refusal("tokenizer.alphabet", alphabet, f"holds {twice[0]!r} more than once", "keep one of them")
    for word in words:
        if len(word) < 2:
            raise refusal("tokenizer.words", words, f"holds {word!r}", "put single characters in tokenizer.alphabet")
        if words.count(word) > 1:
            raise refusal("tokenizer.words", words, f"holds {word!r} more than once", "keep one of them")


MODEL_CHECKS = (
    init_folder_is_this_model,
    layout_divides_world,
    sequence_parallel_has_ranks,
    tensor_divides_shape,
    groups_fit_heads,
    groups_fit_tensor,
    head_dim_is_even,
    rope_band_is_ordered,
    virtual_stages_have_a_pipeline,
    stages_hold_the_layers,
    tokenizer_path_fits_kind,
    characters_are_tokens,
)
