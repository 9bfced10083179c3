"""A side sends tokens to other experts, or weighs them differently."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation


class Routing:
    """The engine's own choices are replayed; else the number of experts, their weights' sum and the router's dtype."""

    name = "routing"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        traits, rollouts = case.bench.model.traits, case.bench.rollouts
        if not traits.experts:
            return
        ways = [Computation(renormalise=not traits.renormalise)]
        own = traits.experts_per_token
        for count in sorted({1, own - 1, own + 1, own * 2} - {0, own}):
            if count <= traits.experts:
                ways.append(Computation(experts_per_token=count))
        ways += [Computation(router="fp32" if traits.dtype != "fp32" else "bf16")]
        if rollouts.experts_BTLK is not None:
            ways.append(Computation(replay=True))
        for way in ways:
            yield Hypothesis(way, rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        computation, traits = best.computation, case.bench.model.traits
        if computation.replay:
            return (
                "its log-probs are those with every token sent to the experts that it reported, which are others than "
                "the trainer's for some",
                "replay the engine's routing in the trainer (rl.routing_replay)",
            )
        if computation.experts_per_token is not None:
            how = f"{computation.experts_per_token} experts a token, and the model has {traits.experts_per_token}"
        elif computation.router is not None:
            how = f"its router in {computation.router}"
        else:
            how = f"norm_topk_prob={str(computation.renormalise).lower()}, and the model has the other"
        return (
            f"its log-probs are those with {how}",
            "give both sides the same num_experts_per_tok, norm_topk_prob and precision of the router",
        )
