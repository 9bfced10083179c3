"""The policy that is trained, and the frozen reference."""

from collections.abc import Iterator
from functools import cached_property, partial

from megatron.core.models.gpt import GPTModel
from torch import Tensor

from megarl.config.schema import Recipe
from megarl.megatron.batch import TrainBatch
from megarl.megatron.distribution import PLAIN, Sampling
from megarl.megatron.export_plan import ExportPlan, Spec, plan_export
from megarl.megatron.forward import DEFAULT, policy_forward_step, scoring_forward_step
from megarl.megatron.head import defer_head
from megarl.megatron.micro_batches import MicroBatchSize
from megarl.megatron.model import build_model
from megarl.megatron.reference_kl import batch_kl, beside_reference
from megarl.megatron.router import routers
from megarl.megatron.routing_metrics import agreement_metrics, reset_routers
from megarl.megatron.schedule import Stages, Trainee, Update, score
from megarl.megatron.scores import OutsideSupport, Scorer
from megarl.megatron.weights import ReadTensor, export_weights, load_weights
from megarl.megatron.world import Layout
from megarl.objectives.batch import Objective
from megarl.objectives.normalisation import Normalisation


class FrozenModel:
    """A model that only scores: this rank's pipeline stages."""

    def __init__(self, recipe: Recipe, layout: Layout, vocab_size: int) -> None:
        self.recipe, self.layout, self.vocab_size = recipe, layout, vocab_size
        self.sampling = Sampling.of(recipe.rollout)
        self.models: list[GPTModel] = build_model(recipe.model, recipe.parallel, vocab_size, precision=recipe.precision)
        for model in self.models:
            defer_head(model, in_fp32=recipe.precision.fp32_head)

    def load(self, read: ReadTensor) -> None:
        """Fills the weights from full Hugging Face tensors."""
        load_weights(self.models, self.recipe.model, self.vocab_size, read)

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor under its Hugging Face name, on every rank. Collective."""
        return export_weights(self.models, self.export_plan, self.vocab_size)

    @cached_property
    def export_plan(self) -> ExportPlan:
        """What `export` gives, and how it is gathered. Collective the first time, which an export's may be."""
        return plan_export(self.models, self.recipe.model, self.vocab_size)

    @property
    def export_specs(self) -> tuple[Spec, ...]:
        """Names, shapes and dtypes of what `export` gives, in its order. Collective the first time."""
        return self.export_plan.specs

    def log_probs(
        self, batch: TrainBatch, micro_batch_size: MicroBatchSize, outside: OutsideSupport | None = None
    ) -> Tensor:
        """Log-probs of the batch's targets, under the rollout's sampling. Collective.

        Args:
            batch: the whole batch, the same on every rank; each scores its share.
            micro_batch_size: sequences a rank runs at once, or their tokens.
            outside: counts the targets that the sampling leaves out.

        Returns:
            fp32 [B, T] on every rank, in nats, NaN outside the mask.

        Raises:
            ValueError: the batch does not split into such micro-batches.
        """
        step = scoring_forward_step(vocab_size=self.vocab_size, sampling=self.sampling, outside=outside)
        return score(self.stages, self.layout, step, batch, micro_batch_size)

    @property
    def stages(self) -> Stages:
        """What the schedule runs."""
        return self.models


class Policy(FrozenModel, Trainee):
    """The model that is trained."""

    def __init__(self, recipe: Recipe, layout: Layout, vocab_size: int) -> None:
        FrozenModel.__init__(self, recipe, layout, vocab_size)
        Trainee.__init__(
            self,
            self.models,
            layout,
            recipe.precision,
            distributed_optimizer=recipe.parallel.distributed_optimizer,
        )
        for router in routers(self.models):
            router.replay = recipe.rl.routing_replay

    def load(self, read: ReadTensor) -> None:
        """Fills the weights, and the optimizer's own where there is one already."""
        self.release()
        FrozenModel.load(self, read)
        self.take_over_weights()

    def log_probs_and_agreement(
        self, batch: TrainBatch, micro_batch_size: MicroBatchSize
    ) -> tuple[Tensor, dict[str, float]]:
        """`log_probs`, and how far the model agrees with the engine on what can be told of each token. Collective.

        Returns:
            The log-probs. routing_agreement and routing_overlap with the engine's ids, where the batch has some and
            rl.routing_replay is on; outside_support_share, of the tokens that the engine sampled and this model's own
            truncation leaves out, where the sampling truncates.
        """
        reset_routers(self.stages)
        outside = OutsideSupport()
        log_probs_BT = self.log_probs(batch, micro_batch_size, outside)
        metrics = {}
        if self.sampling.truncates:
            metrics["outside_support_share"] = outside.share(log_probs_BT.device, self.layout)
        if batch.routed_experts_BTLK is not None:
            metrics |= agreement_metrics(self.stages, self.layout)
        return log_probs_BT, metrics

    def update(
        self,
        batch: TrainBatch,
        objective: Objective,
        *,
        micro_batch_size: MicroBatchSize,
        sampling: Sampling = PLAIN,
        normalisation: Normalisation = DEFAULT,
        reference: FrozenModel | None = None,
    ) -> Update:
        """One optimizer step on the batch; see `Trainee.train`. Collective.

        Args:
            batch: the whole update batch, the same on every rank.
            objective: the loss.
            micro_batch_size: sequences a rank runs at once, or their tokens.
            sampling: how the responses were drawn; log-probs and entropies are those of its distribution.
            normalisation: see `megarl.objectives.normalisation`.
            reference: for an objective that reads the exact KL.
        """
        step = policy_forward_step(
            objective,
            vocab_size=self.vocab_size,
            sampling=sampling,
            normalisation=normalisation,
            reference=None if reference is None else reference.stages[-1],
        )
        if reference is None:
            return self.train(batch, step, micro_batch_size)
        return self.train(batch, step, micro_batch_size, partial(beside_reference, reference.stages, self.layout))

    def reference_kl(self, batch: TrainBatch, reference: FrozenModel, micro_batch_size: MicroBatchSize) -> Tensor:
        """KL(policy || reference) over the vocabulary at each target, at the rollout's temperature. Collective.

        Args:
            batch: the whole batch, the same on every rank.
            reference: the frozen model.
            micro_batch_size: sequences a rank runs at once, or their tokens.

        Returns:
            fp32 [B, T] on every rank, in nats, NaN outside the mask.
        """
        scorer = Scorer(self.vocab_size, self.sampling, reference.stages[-1])
        return batch_kl(self.stages, reference.stages, self.layout, scorer, batch, micro_batch_size)

    @property
    def stages(self) -> Stages:
        """The stages in their gradient buffers."""
        return self.wrapped
