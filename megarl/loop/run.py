"""Everything a run is made of, built once from the recipe."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from megarl.checkpoint.retention import Retention
from megarl.checkpoint.state import RunState
from megarl.checkpoint.store import CheckpointStore
from megarl.config.errors import DataError
from megarl.config.load import recipe_hash
from megarl.config.output import CheckpointConfig
from megarl.config.schema import Recipe
from megarl.data.problem import Problem, Source
from megarl.data.registry import build_source
from megarl.data.tokenizer import build_tokenizer, decode, encode
from megarl.loop.folder import CHECKPOINTS, writing_to
from megarl.loop.inputs import inputs_of
from megarl.loop.journal import Journal
from megarl.loop.policy_loss import build_policy_loss
from megarl.loop.saver import Saver
from megarl.loop.software import engine_facts, facts
from megarl.loop.stop import StopFlag, Stopped
from megarl.loop.watchdog import phase
from megarl.megatron.critic import Critic
from megarl.megatron.policy import FrozenModel, Policy
from megarl.megatron.schedule import Trainee
from megarl.megatron.world import Layout
from megarl.objectives.batch import Objective
from megarl.objectives.registry import build_objective
from megarl.platform.platform import current
from megarl.rewards.registry import build_reward
from megarl.rewards.reward import Reward
from megarl.rollout.build import build_engine, build_fleet
from megarl.rollout.distribute import generate_at_servers, generate_on_all_ranks
from megarl.rollout.engine import Engine, EngineError
from megarl.rollout.fleet import Fleet
from megarl.rollout.types import Completion, Request, SamplingParams
from megarl.sync.push import LocalSync, ServedSync, build_sync

if TYPE_CHECKING:
    from megarl.loop.ahead import Ahead


@dataclass
class Run:
    """One run on one process. Every method that generates, scores or saves is collective."""

    recipe: Recipe
    layout: Layout
    source: Source
    tokenizer: PreTrainedTokenizerFast
    reward: Reward
    objective: Objective
    policy: Policy
    engine: Engine | None
    sync: LocalSync | ServedSync
    store: CheckpointStore
    journal: Journal
    stop: StopFlag
    reference: FrozenModel | None = None
    critic: Critic | None = None
    ahead: "Ahead | None" = None
    state: RunState = field(default_factory=RunState)
    saved: dict[str, Any] | None = None
    engine_before: Mapping[str, Any] = field(default_factory=lambda: {"releases": []})
    warned_of_entropy: bool = False
    token_classes_V: Tensor | None = None
    told_of_drift: set[str] = field(default_factory=set)
    lost_engine: EngineError | None = None

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.recipe.output_dir)

    @property
    def trainees(self) -> dict[str, Trainee]:
        """The models that are trained, by the names that they have in a checkpoint."""
        return {"policy": self.policy, **({} if self.critic is None else {"critic": self.critic})}

    @property
    def stop_token_id(self) -> int:
        """The token that ends a response."""
        return int(self.tokenizer.eos_token_id)

    def sampling(self, *, greedy: bool = False, with_routing: bool = False) -> SamplingParams:
        """The recipe's sampling settings."""
        rollout = self.recipe.rollout
        return SamplingParams(
            temperature=rollout.temperature,
            max_new_tokens=rollout.max_new_tokens,
            stop_token_id=self.stop_token_id,
            greedy=greedy,
            with_routing=with_routing,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
        )

    def requests(self, problems: Sequence[Problem], samples: int, stream: str) -> list[Request]:
        """`samples` requests for each problem, group by group.

        Raises:
            DataError: a prompt leaves no room for the longest response.
        """
        room = self.recipe.model.max_position_embeddings - self.recipe.rollout.max_new_tokens
        requests = []
        for problem in problems:
            prompt_ids = tuple(encode(self.tokenizer, problem.prompt))
            if len(prompt_ids) > room:
                raise DataError(
                    f"prompt {problem.id} has {len(prompt_ids)} tokens, which with rollout.max_new_tokens="
                    f"{self.recipe.rollout.max_new_tokens} exceeds model.max_position_embeddings="
                    f"{self.recipe.model.max_position_embeddings}; shorten it or raise the latter."
                )
            requests += [Request(problem.id, sample, prompt_ids, stream) for sample in range(samples)]
        return requests

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Completions of all requests, on every rank. Between the engine's batches a stop signal is heeded.

        Raises:
            Stopped: see `heed_stop`.
            EngineError: the engine is gone for good; the state was saved.
        """
        at_once = self.recipe.rollout.max_batch_size * self.layout.world_size
        completions: list[Completion] = []
        for begin in range(0, len(requests), at_once):
            self.heed_stop()
            try:
                completions += self._generated(requests[begin : begin + at_once], sampling)
            except EngineError:
                # the weights are those of the state, as they are where a stop is heeded
                self.end_without_engine()
                raise
        return completions

    def _generated(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        rank, world_size = self.layout.rank, self.layout.world_size
        if self.recipe.rollout.engine == "embedded":
            assert self.engine is not None
            return generate_on_all_ranks(self.engine, requests, sampling, rank, world_size)
        again = partial(self.sync.push, self.state.weight_version)
        return generate_at_servers(self.engine, requests, sampling, world_size, again)

    def engine_metrics(self) -> dict[str, float]:
        """What the servers and the way to them went through since this was last asked; on the main rank."""
        if not isinstance(self.engine, Fleet) or not isinstance(self.sync, ServedSync):
            return {}
        return {**self.engine.counts(), "sync/bytes": self.sync.sent_bytes()}

    def close(self) -> None:
        """Ends the servers that the run started, and removes what went between them and the trainer."""
        if self.ahead is not None:
            self.ahead.close()
        self.sync.close()
        if isinstance(self.engine, Fleet):
            self.engine.close()

    def response_text(self, completion: Completion) -> str:
        """The response as text, without its end token."""
        return decode(self.tokenizer, list(completion.token_ids))

    def heed_stop(self) -> None:
        """Ends the run where a signal asked for it: to be called only where the weights are those of `state`.

        A save in the background is completed here too, once it is written.

        Raises:
            Stopped: the state was saved, on every rank.
            RunFolderError: a save in the background failed.
        """
        self.saver.poll()
        number = torch.tensor(self.stop.signal_number, device=current().device)
        if self.layout.world_size > 1:
            dist.all_reduce(number, op=dist.ReduceOp.MAX)
        if number > 0:
            self.save()
            raise Stopped(int(number))

    def heed_loss(self) -> None:
        """Ends the run where the step that is over lost its engine: to be called once the step is counted.

        Raises:
            EngineError: the engine is gone for good; the state after the step was saved.
        """
        if self.lost_engine is not None:
            self.end_without_engine()
            raise self.lost_engine

    def end_without_engine(self) -> None:
        """Saves; to be called where the engine is gone for good, the weights are those of `state`, and a step is over.

        Raises:
            Stopped: the run was told to stop while it waited for the engine.
        """
        self.save()
        self.heed_stop()

    def save(self, *, wait: bool = True, metrics: Mapping[str, float] | None = None) -> None:
        """Checkpoints the state, unless the newest checkpoint is of this state already.

        Args:
            wait: whether the checkpoint counts when this returns; else with `checkpoint.background` it may do later.
            metrics: of the step before, for `checkpoint.best_metric`.

        Raises:
            RunFolderError: it, or the one before, could not be written; those before are whole.
        """
        state = self.state.as_dict()
        if self.saved != state:
            if self.ahead is not None:
                self.ahead.note_awaited()
            # a finished run has no further use for moments
            stepped = {
                name: trainee.has_stepped and self.state.phase != "done" for name, trainee in self.trainees.items()
            }
            about = {
                "recipe_hash": recipe_hash(self.recipe),
                "recipe": asdict(self.recipe),
                "optimizers": stepped,
                **self._score(metrics),
                **facts(),
                "engine": engine_facts(self),
                "inputs": self.inputs if self.layout.is_main else {},
            }
            with phase("save"):
                self.journal.sync()
                self.saver.begin(about, stepped)
            self.saved = state
        if wait:
            with phase("save"):
                self.saver.finish()

    def _score(self, metrics: Mapping[str, float] | None) -> dict[str, float]:
        config = self.recipe.checkpoint
        if config.keep_best == 0 or metrics is None:
            return {}
        value = metrics.get(config.best_metric, math.nan)
        if not math.isfinite(value):
            message = f"checkpoint.best_metric={config.best_metric} was not measured in this step"
            self.journal.note(f"warning: {message}, so its checkpoint is none of the best")
            return {}
        return {"score": float(value)}

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Digests of what the run reads beside its recipe."""
        return inputs_of(self)

    @cached_property
    def saver(self) -> Saver:
        """Writes the run's checkpoints."""
        return Saver(self)


def build_run(recipe: Recipe, layout: Layout, journal: Journal, stop: StopFlag) -> Run:
    """Builds every part; weights, optimizer and state are still to be loaded (see `loop.start`)."""
    tokenizer = build_tokenizer(recipe.tokenizer)
    vocab_size = len(tokenizer)
    # a user's own objective may not take what goes around it: refused before a model is built
    build_policy_loss(recipe, recipe.rl.kl.coefficient)
    # servers come up while the trainer's own parts are built
    engine = _build_engine(recipe, layout, vocab_size, journal, stop)
    policy = Policy(recipe, layout, vocab_size)
    return Run(
        recipe=recipe,
        layout=layout,
        source=build_source(recipe),
        tokenizer=tokenizer,
        reward=build_reward(recipe),
        objective=build_objective(recipe.rl.objective),
        policy=policy,
        engine=engine,
        sync=build_sync(recipe, policy, engine),
        store=CheckpointStore(Path(recipe.output_dir) / CHECKPOINTS, _retention(recipe.checkpoint)),
        journal=journal,
        stop=stop,
    )


def _build_engine(recipe: Recipe, layout: Layout, vocab_size: int, journal: Journal, stop: StopFlag) -> Engine | None:
    if recipe.rollout.engine == "embedded":
        return build_engine(recipe, vocab_size)
    if not layout.is_main:
        return None
    with writing_to(recipe.output_dir, "what describes the model to its servers"):
        return build_fleet(recipe, vocab_size, journal.note, lambda: stop.signal_number > 0)


def _retention(config: CheckpointConfig) -> Retention:
    better: Literal["max", "min"] = "max" if config.best_mode == "max" else "min"
    return Retention(config.keep, every=config.keep_every, best=config.keep_best, better=better)
