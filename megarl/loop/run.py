"""Everything a run is made of, built once from the recipe."""

import platform as python_platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from transformers import PreTrainedTokenizerFast

from megarl.checkpoint.responses import save_responses
from megarl.checkpoint.state import RunState
from megarl.checkpoint.store import CheckpointStore
from megarl.checkpoint.tensors import save_tensors
from megarl.config.errors import DataError
from megarl.config.load import recipe_hash
from megarl.config.schema import Recipe
from megarl.data.problem import Problem, Source
from megarl.data.registry import build_source
from megarl.data.tokenizer import build_tokenizer, decode, encode
from megarl.loop.folder import CHECKPOINTS
from megarl.loop.journal import Journal
from megarl.loop.policy_loss import build_policy_loss
from megarl.loop.stop import StopFlag, Stopped
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
    warned_of_entropy: bool = False

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
                self.save()
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

        Raises:
            Stopped: the state was saved, on every rank.
        """
        number = torch.tensor(self.stop.signal_number, device=current().device)
        if self.layout.world_size > 1:
            dist.all_reduce(number, op=dist.ReduceOp.MAX)
        if number > 0:
            self.save()
            raise Stopped(int(number))

    def save(self) -> None:
        """Checkpoints the state, unless the newest checkpoint is of this state already."""
        state = self.state.as_dict()
        if self.saved == state:
            return
        if self.ahead is not None:
            self.ahead.note_awaited()
        if self.layout.is_main:
            self.store.begin()
        # a finished run has no further use for moments
        stepped = {name: trainee.has_stepped and self.state.phase != "done" for name, trainee in self.trainees.items()}
        for name, trainee in self.trainees.items():
            is_policy = trainee is self.policy
            save_tensors(trainee, self.store.staging, with_optimizer=stepped[name], name=name, with_rng=is_policy)
        if self.layout.is_main:
            save_responses(self.store.staging, self.state.awaited)
            about = {
                "recipe_hash": recipe_hash(self.recipe),
                "recipe": asdict(self.recipe),
                "optimizers": stepped,
                **facts(),
            }
            self.store.commit(self.state, about)
        # no rank may end, which could end the others, before the checkpoint counts
        dist.barrier()
        self.saved = state


def build_run(recipe: Recipe, layout: Layout, journal: Journal, stop: StopFlag) -> Run:
    """Builds every part; weights, optimizer and state are still to be loaded (see `loop.start`)."""
    tokenizer = build_tokenizer(recipe.tokenizer)
    vocab_size = len(tokenizer)
    # a user's own objective may not take what goes around it: refused before a model is built
    build_policy_loss(recipe, recipe.rl.kl.coefficient)
    # servers come up while the trainer's own parts are built
    engine = _build_engine(recipe, layout, vocab_size, journal)
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
        store=CheckpointStore(Path(recipe.output_dir) / CHECKPOINTS, recipe.checkpoint.keep),
        journal=journal,
        stop=stop,
    )


def _build_engine(recipe: Recipe, layout: Layout, vocab_size: int, journal: Journal) -> Engine | None:
    if recipe.rollout.engine == "embedded":
        return build_engine(recipe, vocab_size)
    return build_fleet(recipe, vocab_size, journal.note) if layout.is_main else None


def facts() -> dict[str, Any]:
    """What a checkpoint and a run record about the software."""
    libraries = ("megarl", "torch", "megatron-core", "transformers")
    return {"python": python_platform.python_version(), "libraries": {name: version(name) for name in libraries}}


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Adds the block's wall time to seconds[name]; what the device was asked for in it is done by its end."""
    current().synchronize()
    begin = time.perf_counter()
    yield
    current().synchronize()
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begin
