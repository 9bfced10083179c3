"""Faults of which tokens are read, and where their log-probs stand."""

from dataclasses import replace

import torch
from torch import Tensor

from megarl.diagnose.selftest.fault import Fault, Planted
from megarl.diagnose.selftest.scene import Scene, scored
from megarl.diagnose.selftest.small import BEGIN, OPENER, PAD, STOP
from megarl.drift.diagnosis.rollouts import Rollouts

_MERGED = 95


def _shifted(values_BT: Tensor, mask_BT: Tensor, by: int) -> Tensor:
    return values_BT.roll(by, dims=1).where(mask_BT & mask_BT.roll(by, dims=1), float("nan"))


def _engine_late(scene: Scene) -> Planted:
    rollouts = scene.rollouts()
    moved_BT = _shifted(rollouts.engine_log_probs_BT, rollouts.mask_BT, 1)
    return Planted(replace(rollouts, engine_log_probs_BT=moved_BT), "before")


def _trainer_early(scene: Scene) -> Planted:
    rollouts = scene.rollouts()
    moved_BT = _shifted(rollouts.trainer_log_probs_BT, rollouts.mask_BT, -1)
    return Planted(replace(rollouts, trainer_log_probs_BT=moved_BT), "behind")


def _opener(scene: Scene) -> Planted:
    scene.engine.opener = ((BEGIN,), OPENER)[scene.choose(2)]
    return Planted(scene.rollouts(), str(list(scene.engine.opener)))


def _stop_appended(scene: Scene) -> Planted:
    """The trainer ends what the engine left open, and gives the token a log-prob of 0."""
    rollouts = scene.rollouts()
    open_B = rollouts.ids_BT.gather(1, rollouts.lengths_B[:, None] - 1)[:, 0] != STOP
    rows, ends = open_B.nonzero()[:, 0], rollouts.lengths_B[open_B]
    ids_BT = torch.nn.functional.pad(rollouts.ids_BT, (0, 1), value=PAD)
    reported_BT = torch.nn.functional.pad(rollouts.engine_log_probs_BT, (0, 1), value=float("nan"))
    ids_BT[rows, ends], reported_BT[rows, ends] = STOP, 0.0
    appended = replace(
        rollouts, ids_BT=ids_BT, lengths_B=rollouts.lengths_B + open_B.long(), engine_log_probs_BT=reported_BT
    )
    return Planted(replace(appended, trainer_log_probs_BT=scene.trainer_log_probs(appended)), f"{len(rows)} of")


def _retokenised(scene: Scene) -> Planted:
    """Text in between makes one token of two in every third response."""
    engine = scene.rollouts()
    ids_BT, lengths_B = engine.ids_BT.clone(), engine.lengths_B.clone()
    for row in range(0, len(ids_BT), 3):
        place = int(engine.prompt_lengths_B[row])
        if lengths_B[row] - place < 2:
            continue
        ids_BT[row, place] = _MERGED
        ids_BT[row, place + 1 : -1] = engine.ids_BT[row, place + 2 :]
        lengths_B[row] -= 1
    other = replace(
        engine,
        ids_BT=ids_BT,
        lengths_B=lengths_B,
        engine_ids_BT=engine.ids_BT,
        engine_lengths_B=engine.lengths_B,
    )
    return Planted(replace(other, trainer_log_probs_BT=scene.trainer_log_probs(other)), "responses are other tokens")


@torch.no_grad()
def _padded(scene: Scene, *, between: bool) -> Rollouts:
    """The trainer pads prompts to one length: before them and unmasked, or behind them and counted."""
    rollouts = scene.rollouts()
    longest = int(rollouts.prompt_lengths_B.max())
    pads_B = longest - rollouts.prompt_lengths_B
    width = int((rollouts.lengths_B + pads_B).max())
    ids_BT = torch.full((len(pads_B), width), PAD)
    mask_BT = torch.zeros(len(pads_B), width, dtype=torch.int64)
    for row, (prompt, end, pads) in enumerate(
        zip(rollouts.prompt_lengths_B.tolist(), rollouts.lengths_B.tolist(), pads_B.tolist(), strict=True)
    ):
        begin = 0 if between else pads
        ids_BT[row, begin : begin + prompt] = rollouts.ids_BT[row, :prompt]
        ids_BT[row, longest : longest + end - prompt] = rollouts.ids_BT[row, prompt:end]
        mask_BT[row, begin : begin + prompt] = mask_BT[row, longest : longest + end - prompt] = 1
    if between:
        positions = torch.arange(width).expand(len(pads_B), width)
        logits_BTV = scene.versions[0](input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions).logits
    else:
        logits_BTV = scene.versions[0](input_ids=ids_BT, attention_mask=torch.ones_like(mask_BT)).logits
    parts = []
    spans = zip(rollouts.prompt_lengths_B.tolist(), rollouts.lengths_B.tolist(), strict=True)
    for row, (prompt, end) in enumerate(spans):
        first = prompt - 1 if between else longest - 1
        parts += [logits_BTV[row, first : first + 1], logits_BTV[row, longest : longest + end - prompt - 1]]
    return replace(rollouts, trainer_log_probs_BT=scored(rollouts, torch.cat(parts)))


def _left_padding(scene: Scene) -> Planted:
    return Planted(_padded(scene, between=False), "read as tokens")


def _gap(scene: Scene) -> Planted:
    return Planted(_padded(scene, between=True), "counted in the positions")


@torch.no_grad()
def _packed(scene: Scene) -> Planted:
    """The trainer packs sequences end to end and forgets where they end."""
    rollouts = scene.rollouts()
    size = (2, 4)[scene.choose(2)]
    parts = []
    for begin in range(0, len(rollouts.ids_BT), size):
        rows = range(begin, min(begin + size, len(rollouts.ids_BT)))
        ends = [int(rollouts.lengths_B[row]) for row in rows]
        packed = torch.cat([rollouts.ids_BT[row, :end] for row, end in zip(rows, ends, strict=True)])
        logits_TV = scene.versions[0](input_ids=packed[None]).logits[0]
        offset = 0
        for row, end in zip(rows, ends, strict=True):
            parts.append(logits_TV[offset + int(rollouts.prompt_lengths_B[row]) - 1 : offset + end - 1])
            offset += end
    changed = replace(rollouts, trainer_log_probs_BT=scored(rollouts, torch.cat(parts)))
    return Planted(changed, f"of {size} sequences end to end")


@torch.no_grad()
def _not_causal(scene: Scene) -> Planted:
    rollouts = scene.rollouts()
    width = rollouts.ids_BT.shape[1]
    read_B1T = torch.arange(width) < rollouts.lengths_B[:, None, None]
    sees_B1TT = (read_B1T.expand(-1, width, -1) | torch.eye(width, dtype=torch.bool))[:, None]
    dtype = scene.versions[0].dtype
    mask_B1TT = torch.zeros(sees_B1TT.shape, dtype=dtype).masked_fill_(~sees_B1TT, torch.finfo(dtype).min)
    logits_BTV = scene.versions[0](input_ids=rollouts.ids_BT, attention_mask=mask_B1TT).logits
    of_responses = scored(rollouts, logits_BTV[:, :-1][rollouts.mask_BT[:, 1:]])
    return Planted(replace(rollouts, trainer_log_probs_BT=of_responses), "see the tokens behind them")


FAULTS = (
    Fault("engine's log-probs a token late", "off_by_one", "engine", _engine_late),
    Fault("trainer's log-probs a token early", "off_by_one", "trainer", _trainer_early),
    Fault("left padding read as tokens", "left_padding", "trainer", _left_padding),
    Fault("padding counted in positions", "left_padding", "trainer", _gap),
    Fault("retokenised text", "retokenised", "trainer", _retokenised),
    Fault("stop token appended", "stop_token", "trainer", _stop_appended),
    Fault("chat template", "chat_template", "engine", _opener),
    Fault("packing leak", "attention_mask", "trainer", _packed),
    Fault("mask not causal", "attention_mask", "trainer", _not_causal),
)
