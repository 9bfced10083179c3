"""Responses of coming steps, generated while the trainer trains."""

from dataclasses import dataclass

import torch.distributed as dist

from megarl.loop.run import Run
from megarl.rollout.engine import EngineError, EngineLost
from megarl.rollout.fleet import Fleet
from megarl.rollout.stream import Stream, Ticket
from megarl.rollout.types import Completion, Request


@dataclass
class _Batch:
    requests: list[Request]
    tickets: list[Ticket]
    """On the main rank; elsewhere none."""


class Ahead:
    """Batches of prompts under way, by position of their first problem in the source's stream.

    A step takes its batches in the order of that stream, each when all its responses are there. The batch `n` places
    behind the one that a step takes is trained on at most `n` steps later, and begins no earlier than that step: so no
    token is older than `AsynchronyConfig.lookahead` updates when it is trained on.
    """

    def __init__(self, run: Run) -> None:
        """Args: run: what a resumed one has awaited goes on where it was."""
        self._run, self._config = run, run.recipe.rl.asynchrony
        self._batches: dict[int, _Batch] = {}
        self._stream: Stream | None = None
        if isinstance(run.engine, Fleet):
            self._stream = Stream(run.engine, drop_spanning=self._config.spanning == "drop")

    def take(self, first: int) -> list[Completion]:
        """The responses to the batch at problem `first`, on every rank; sees to it that those behind it are under way.

        Raises:
            Stopped: a signal asked for it; the state was saved.
            EngineError: the engine is gone for good; the state was saved.
        """
        run = self._run
        run.heed_stop()
        self._forget()
        for behind in range(self._config.lookahead + 1):
            position = first + behind * run.recipe.rl.prompts_per_step
            if behind == 0 or run.state.step + behind < run.recipe.rl.steps:
                self._begin(position)
        try:
            return self._collected(self._batches[first], heed_stop=True)
        except EngineError:
            run.end_without_engine()
            raise

    def settle(self) -> None:
        """Before an update: waits for all that is under way where none of it may span the update.

        Raises:
            EngineError: the engine is gone for good.
        """
        if self._config.mode == "one_step_off":
            for batch in self._batches.values():
                self._collected(batch, heed_stop=False)

    def note_awaited(self) -> None:
        """Puts into the state what no finished step has trained on. Where responses span updates, a part counts too."""
        self._forget()
        if self._stream is None:
            return
        cut = self._config.mode == "fully_async" and any(
            not ticket.future.done() for batch in self._batches.values() for ticket in batch.tickets
        )
        if cut:
            self._stream.hold()
        awaited = {
            position: {
                row: ticket.begun
                for row, ticket in enumerate(batch.tickets)
                if ticket.begun is not None and (cut or ticket.future.done())
            }
            for position, batch in self._batches.items()
        }
        # a batch that the state holds and no step has asked for yet
        kept = {position: rows for position, rows in self._run.state.awaited.items() if position not in awaited}
        self._run.state.awaited = {**kept, **awaited}
        if cut:
            self._stream.go_on()

    def take_dropped(self) -> int:
        """Responses that were begun anew since the last call; on the main rank, elsewhere 0."""
        return 0 if self._stream is None else self._stream.take_dropped()

    def finish(self) -> None:
        """Ends what is under way for steps that will not come."""
        tickets = [ticket for batch in self._batches.values() for ticket in batch.tickets]
        if self._stream is not None and not all(ticket.future.done() for ticket in tickets):
            self._stream.hold()
        self.close()

    def close(self) -> None:
        """Awaits nothing more."""
        self._batches.clear()
        self._run.state.awaited = {}
        if self._stream is not None:
            self._stream.close()

    def _begin(self, position: int) -> None:
        if position in self._batches:
            return
        run, rl = self._run, self._run.recipe.rl
        problems = [run.source.training(position + index) for index in range(rl.prompts_per_step)]
        # named by its place in the data: which step takes it may not be known yet
        requests = run.requests(problems, rl.samples_per_prompt, stream=f"rl/{position // rl.prompts_per_step}")
        tickets = []
        if self._stream is not None:
            known = run.state.awaited.get(position, {})
            sampling = run.sampling()
            tickets = [self._stream.submit(request, sampling, known.get(row)) for row, request in enumerate(requests)]
        self._batches[position] = _Batch(requests, tickets)

    def _forget(self) -> None:
        """Lets go of what finished steps have trained on; a step that is not finished would be taken anew."""
        drawn = self._run.state.problems_drawn
        self._batches = {position: batch for position, batch in self._batches.items() if position >= drawn}
        awaited = self._run.state.awaited
        self._run.state.awaited = {position: rows for position, rows in awaited.items() if position >= drawn}

    def _collected(self, batch: _Batch, *, heed_stop: bool) -> list[Completion]:
        run = self._run
        while True:
            outcome: list[list[Completion] | Exception | str] = ["stop"]
            if self._stream is not None:
                try:
                    if self._stream.wait(batch.tickets, lambda: heed_stop and run.stop.signal_number > 0):
                        outcome[0] = [ticket.future.result() for ticket in batch.tickets]
                except EngineLost:
                    outcome[0] = "lost"
                except Exception as error:
                    outcome[0] = error
            if run.layout.world_size > 1:
                dist.broadcast_object_list(outcome)
            found = outcome[0]
            if isinstance(found, list):
                return found
            if isinstance(found, Exception):
                raise found
            if found == "stop":
                run.heed_stop()
            else:
                run.sync.push(run.state.weight_version)
