"""What tokens tell by themselves, without a model."""

from dataclasses import replace

import torch

from megarl.drift.diagnosis import Rollouts, diagnose

NAN = float("nan")
STOP = 1


def rollouts() -> Rollouts:
    """Two prompts of two tokens; responses of three and two."""
    ids_BT = torch.tensor([[5, 6, 7, 8, STOP], [5, 6, 9, 9, 0]])
    log_probs_BT = torch.tensor([[NAN, NAN, -1.0, -2.0, -3.0], [NAN, NAN, -1.0, -2.0, NAN]])
    return Rollouts(
        ids_BT, torch.tensor([2, 2]), torch.tensor([5, 4]), log_probs_BT, log_probs_BT.clone(), stop_token_id=STOP
    )


def causes(given: Rollouts) -> list[str]:
    return [finding.cause for finding in diagnose(given).findings]


def test_the_same_tokens_and_log_probs_have_no_cause() -> None:
    same = rollouts()
    told = replace(same, engine_ids_BT=same.ids_BT, engine_lengths_B=same.lengths_B)
    assert causes(same) == causes(told) == []
    assert diagnose(same).tokens == 5


def test_other_tokens_are_named_by_where_they_differ() -> None:
    given = rollouts()
    engine_BT = given.ids_BT.clone()
    engine_BT[0, 3] = 3
    told = replace(given, engine_ids_BT=engine_BT, engine_lengths_B=given.lengths_B)
    assert causes(told) == ["retokenised"]
    engine_BT = given.ids_BT.clone()
    engine_BT[1, 0] = 3
    assert causes(replace(told, engine_ids_BT=engine_BT)) == ["chat_template"]
    shorter_B = given.lengths_B - torch.tensor([1, 0])
    assert causes(replace(told, engine_ids_BT=given.ids_BT, engine_lengths_B=shorter_B)) == ["stop_token"]


def test_a_last_stop_token_without_a_log_prob_was_appended() -> None:
    given = rollouts()
    for made_up in (NAN, 0.0):
        engine_BT = given.engine_log_probs_BT.clone()
        engine_BT[0, 4] = made_up
        assert causes(replace(given, engine_log_probs_BT=engine_BT)) == ["stop_token"]


def test_an_engine_that_is_certain_of_an_end_sampled_it() -> None:
    """At a low temperature, say: the trainer finds the token likely too."""
    given = rollouts()
    engine_BT, trainer_BT = given.engine_log_probs_BT.clone(), given.trainer_log_probs_BT.clone()
    engine_BT[0, 4], trainer_BT[0, 4] = 0.0, -0.1
    assert causes(replace(given, engine_log_probs_BT=engine_BT, trainer_log_probs_BT=trainer_BT)) == []


def test_other_tokens_without_a_log_prob_are_no_appended_stop() -> None:
    given = rollouts()
    engine_BT = given.engine_log_probs_BT.clone()
    engine_BT[0, 3:] = NAN
    assert causes(replace(given, engine_log_probs_BT=engine_BT)) == []
