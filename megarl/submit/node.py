"""What a job's script asks on the cluster: `python -m megarl.submit.node ACTION`. Imports nothing heavy."""

import argparse
import json
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from megarl.config.errors import USER_ERROR, UserError
from megarl.observe.announced import ENDED, URL
from megarl.submit import attempts
from megarl.submit.health import Answer, bad_nodes, complaint
from megarl.submit.progress import is_done, reached, saved
from megarl.submit.stage import stage
from megarl.submit.verdict import Attempt, Limits

_POLL_S = 0.5


def main(argv: list[str] | None = None) -> int:
    """Runs one action; its answer goes to the standard output.

    Args:
        argv: arguments after the program's name; those of the process if None.

    Returns:
        Exit code: 0, 1 where the script must not go on, or 2 where a file of the run's cannot be used.
    """
    given = _parse(argv)
    try:
        action: int = given.run_action(given)
    except UserError as error:
        _say(f"error: {error}")
        return USER_ERROR
    return action


def _begin(given: argparse.Namespace) -> int:
    """Makes the attempt's folders, or says why there is no further attempt."""
    run = Path(given.run)
    reason = attempts.given_up(run, given.submission)
    if reason is not None:
        _say(f"given up: {reason}")
        return 1
    for part in ("rendezvous", "servers"):
        folder = _folder(run, part, given.attempt)
        # of an attempt that had no time to clean up
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    return 0


def _end(given: argparse.Namespace) -> int:
    """Records the attempt, and prints what becomes of the job."""
    run = Path(given.run)
    # the servers' logs stay
    shutil.rmtree(_folder(run, "rendezvous", given.attempt), ignore_errors=True)
    bad = tuple(filter(None, given.bad.split(",")))
    now = Attempt(given.attempt, given.code, given.stopped, bad, reached(run), saved(run), is_done(run), given.lost)
    decided, reason = attempts.record(run, given.submission, now, _limits(given))
    _say(f"{decided}: {reason}")
    print(decided)
    return 0


def _health(given: argparse.Namespace) -> int:
    """One line of JSON about this node; a bad one is no failure of this program."""
    node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    print(json.dumps({"node": node, "complaint": complaint(given.free_gib, given.gpus, given.command)}), flush=True)
    return 0


def _bad(given: argparse.Namespace) -> int:
    """The bad nodes, comma-separated; 1 where there are any, or none answered."""
    answers = [Answer.parse(line) for line in given.report.splitlines()]
    found = bad_nodes(given.nodes, [answer for answer in answers if answer is not None])
    if found is None:
        _say("no node answered the health check")
        return 1
    for node, reason in found.items():
        _say(f"{node} is bad: {reason}")
    # SLURM replaces the list of a job's excluded nodes: those of earlier attempts stay in it
    before = attempts.excluded(Path(given.run), given.submission) if found else []
    print(",".join(dict.fromkeys([*before, *found])))
    return int(bool(found))


def _token(_: argparse.Namespace) -> int:
    print(secrets.token_urlsafe(32))
    return 0


def _urls(given: argparse.Namespace) -> int:
    """The override that names the servers, once all have announced themselves; 1 where they do not come."""
    deadline = time.monotonic() + given.timeout
    folder = Path(given.folder)
    while True:
        # a listing is asked for anew on a network file system, where the absence of one file may be remembered
        urls = sorted(path.read_text() for path in folder.iterdir() if path.suffix == URL)
        if len(urls) >= given.count:
            print(f"engine.urls={json.dumps(urls)}")
            return 0
        if time.monotonic() > deadline:
            _say(f"{len(urls)} of {given.count} servers came up within engine.start_timeout_s={given.timeout:g}")
            return 1
        if not _runs(given.process):
            _say("the servers ended before all of them were up")
            return 1
        time.sleep(_POLL_S)


def _lost(given: argparse.Namespace) -> int:
    """Tells that the servers have ended, with their last words."""
    folder = Path(given.folder)
    _say(f"the servers have ended, with exit code {given.code}, and the run cannot go on without them")
    words = {path.stem: path.read_text(errors="replace") for path in sorted(folder.glob(f"*{ENDED}"))}
    for server, said in words.items():
        _say(f"{server}: {said}")
    if not words:
        _say(f"none of them left a word; their logs are {folder}/*/server.log")
    return 0


def _stage(given: argparse.Namespace) -> int:
    stage(Path(given.source), Path(given.target))
    return 0


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _folder(run: Path, part: str, attempt: str) -> Path:
    return run / attempts.FOLDER / part / attempt


def _limits(given: argparse.Namespace) -> Limits:
    return Limits(given.requeue, given.same_step, given.failures, given.excluded)


def _say(message: str) -> None:
    print(f"megarl: {message}", file=sys.stderr)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m megarl.submit.node")
    actions = parser.add_subparsers(required=True)
    of_run = argparse.ArgumentParser(add_help=False)
    of_run.add_argument("--run", required=True)
    of_run.add_argument("--submission", required=True)
    of_run.add_argument("--same-step", type=int, required=True)
    of_run.add_argument("--failures", type=int, required=True)
    of_run.add_argument("--excluded", type=int, required=True)
    of_run.add_argument("--requeue", action="store_true")
    begin = actions.add_parser("begin", parents=[of_run])
    end = actions.add_parser("end", parents=[of_run])
    for command in (begin, end):
        command.add_argument("--attempt", required=True)
    end.add_argument("--code", type=int, required=True)
    end.add_argument("--stopped", required=True)
    end.add_argument("--bad", required=True)
    end.add_argument("--lost", required=True)
    health = actions.add_parser("health")
    health.add_argument("--free-gib", type=float, required=True)
    health.add_argument("--gpus", type=int, required=True)
    health.add_argument("command", nargs="*")
    bad = actions.add_parser("bad", parents=[of_run])
    bad.add_argument("--report", required=True)
    bad.add_argument("nodes", nargs="+")
    urls = actions.add_parser("urls")
    urls.add_argument("--folder", required=True)
    urls.add_argument("--process", type=int, required=True)
    urls.add_argument("--count", type=int, required=True)
    urls.add_argument("--timeout", type=float, required=True)
    lost = actions.add_parser("lost")
    lost.add_argument("--folder", required=True)
    lost.add_argument("--code", required=True)
    copied = actions.add_parser("stage")
    copied.add_argument("source")
    copied.add_argument("target")
    ways: dict[argparse.ArgumentParser, Callable[[argparse.Namespace], int]] = {
        begin: _begin,
        end: _end,
        health: _health,
        bad: _bad,
        urls: _urls,
        lost: _lost,
        copied: _stage,
    }
    ways[actions.add_parser("token")] = _token
    for command, way in ways.items():
        command.set_defaults(run_action=way)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
