"""Cross-field checks of routed experts and of their layout over processes."""

from megarl.config.names import MOE_FAMILIES
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe


def family_has_experts(recipe: Recipe) -> None:
    """Experts and a family that has them come together."""
    family, experts = recipe.model.family, recipe.model.moe.num_experts
    if family in MOE_FAMILIES and experts == 0:
        reason = f"leaves model.family={family} without experts"
        raise refusal("model.moe.num_experts", 0, reason, "give their number or a dense family")
    if family not in MOE_FAMILIES and experts > 0:
        reason = f"is of a family with routed experts, and model.family={family} is dense"
        raise refusal("model.moe.num_experts", experts, reason, f"set it to 0 or model.family={MOE_FAMILIES[0]}")


def tokens_find_experts(recipe: Recipe) -> None:
    """A token goes to different experts, and its gates leave the router a gradient."""
    moe = recipe.model.moe
    if moe.num_experts == 0:
        return
    if moe.experts_per_token > moe.num_experts:
        reason = f"is more than model.moe.num_experts={moe.num_experts}"
        raise refusal("model.moe.experts_per_token", moe.experts_per_token, reason, f"give at most {moe.num_experts}")
    if moe.experts_per_token == 1 and moe.norm_topk_prob:
        reason = "makes the one gate of model.moe.experts_per_token=1 always 1, which leaves the router no gradient"
        raise refusal("model.moe.norm_topk_prob", True, reason, "set it to false or route to 2 experts or more")


def dense_layers_exist(recipe: Recipe) -> None:
    """The layers that stay dense are layers, named once, and not all of them."""
    dense, layers = recipe.model.moe.dense_layers, recipe.model.num_layers
    if dense != sorted(set(dense)) or any(not 0 <= layer < layers for layer in dense):
        reason = f"is no rising list of layers from 0 to model.num_layers-1={layers - 1}"
        raise refusal("model.moe.dense_layers", dense, reason, "name each such layer once, in rising order")
    if len(dense) == layers:
        reason = f"leaves none of the model.num_layers={layers} layers for the experts"
        raise refusal("model.moe.dense_layers", dense, reason, "leave a layer out of it or take a dense family")


def experts_split_over_ranks(recipe: Recipe) -> None:
    """Each expert-parallel rank holds as many experts, and each expert-tensor rank as much of each."""
    moe, parallel = recipe.model.moe, recipe.parallel
    if moe.num_experts == 0:
        return
    if moe.num_experts % parallel.expert:
        reason = f"does not divide model.moe.num_experts={moe.num_experts}"
        raise refusal("parallel.expert", parallel.expert, reason, "give a divisor of it")
    tensor = parallel.expert_tensor_size
    if moe.ffn_hidden_size % tensor:
        name = "parallel.tensor" if parallel.expert_tensor is None else "parallel.expert_tensor"
        reason = f"does not divide model.moe.ffn_hidden_size={moe.ffn_hidden_size}"
        raise refusal(name, tensor, reason, "give a divisor of it")
    ranks = parallel.expert * tensor * parallel.pipeline
    if parallel.world_size % ranks:
        reason = (
            f"makes groups of {ranks} processes (parallel.expert*expert_tensor*pipeline, expert_tensor={tensor}), "
            f"which do not divide parallel.world_size={parallel.world_size}"
        )
        raise refusal("parallel.expert", parallel.expert, reason, "change one of them")


def experts_under_tensor_parallelism_share_tokens(recipe: Recipe) -> None:
    """Megatron-core's MoE layer trains with tensor parallelism only where sequence parallelism is on."""
    parallel = recipe.parallel
    if recipe.model.moe.num_experts > 0 and parallel.tensor > 1 and not parallel.sequence:
        reason = f"would route every token on each of the parallel.tensor={parallel.tensor} ranks"
        raise refusal("parallel.sequence", False, reason, "set it to true")


MOE_CHECKS = (
    family_has_experts,
    tokens_find_experts,
    dense_layers_exist,
    experts_split_over_ranks,
    experts_under_tensor_parallelism_share_tokens,
)
