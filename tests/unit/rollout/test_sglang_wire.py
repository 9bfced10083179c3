"""What is sent to SGLang and read from it, without one: by a release's fields, and an answer of a real server's."""

import ast
import base64
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megarl.rollout import Request, SamplingParams
from megarl.rollout.engine import EngineError
from megarl.rollout.sglang.wire import from_json, to_json
from megarl.rollout.types import VersionSpan
from megarl.sync.sglang_message import decode, encode
from tests.unit.megatron.tiny import tiny_recipe

HERE = Path(__file__).parent
PACKAGE = HERE.parents[2] / "megarl/rollout/sglang"
FIELDS: dict[str, Any] = json.loads((HERE / "sglang_fields.json").read_text())
"""By request, of the release that "sglang" names; tools/sglang_fields.py wrote them."""
ANSWER: dict[str, Any] = json.loads((HERE / "sglang_answer.json").read_text())
"""Of a real server of that release; tests/engines/sglang holds that a live one has the same keys."""
SAMPLING = SamplingParams(temperature=0.7, max_new_tokens=24, stop_token_id=1)
REQUEST = Request("a problem", 0, (5, 3, 9, 2, 7), "rl/3")
BODIES = {
    "/pause_generation": "PauseGenerationReqInput",
    "/begin_weight_update": "BeginWeightUpdateReqInput",
    "/update_weights_from_tensor": "UpdateWeightsFromTensorReqInput",
    "/end_weight_update": "EndWeightUpdateReqInput",
    "/continue_generation": "ContinueGenerationReqInput",
    "/abort_request": "AbortReq",
}


def test_a_request_has_fields_that_sglang_knows() -> None:
    body = to_json(REQUEST, SAMPLING, seed=3, context=32)
    assert set(body) <= set(FIELDS["GenerateReqInput"])
    assert set(body["sampling_params"]) <= set(FIELDS["SamplingParams"])


def test_every_other_body_has_fields_that_sglang_knows() -> None:
    """From the source: each dict that is posted to a path by its name."""
    seen = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("post", "order")
            ):
                continue
            name, body = node.args[0], node.args[1]
            assert isinstance(name, ast.Constant)
            if isinstance(body, ast.Dict):
                seen.add(name.value)
                sent = {key.value for key in body.keys if isinstance(key, ast.Constant)}
                assert len(sent) == len(body.keys) and sent <= set(FIELDS[BODIES[str(name.value)]])
    assert seen == set(BODIES)


def test_nothing_about_sampling_is_left_to_the_server() -> None:
    sent = to_json(REQUEST, SAMPLING, seed=3, context=32)["sampling_params"]
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["min_p"]) == (0.7, 1.0, -1, 0.0)
    assert (sent["max_new_tokens"], sent["stop_token_ids"]) == (24, [1])
    assert to_json(REQUEST, SAMPLING, seed=3, context=12)["sampling_params"]["max_new_tokens"] == 7


def test_a_request_has_the_same_seed_again_and_another_one_has_another() -> None:
    def seed(request: Request, of_the_recipe: int) -> int:
        return int(to_json(request, SAMPLING, of_the_recipe, 32)["sampling_params"]["sampling_seed"])

    assert seed(REQUEST, 3) == seed(replace(REQUEST), 3)
    others = [replace(REQUEST, sample=1), replace(REQUEST, stream="rl/4"), replace(REQUEST, problem_id="another")]
    seeds = [seed(REQUEST, 3), seed(REQUEST, 4), *(seed(other, 3) for other in others)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= number < 2**63 for number in seeds)


def test_a_real_answer() -> None:
    completion = from_json(REQUEST, SAMPLING, ANSWER, tiny_recipe())
    assert completion.token_ids == tuple(ANSWER["output_ids"])
    assert len(completion.log_probs) == len(completion.token_ids)
    assert all(log_prob is not None and log_prob <= 0 for log_prob in completion.log_probs)
    assert completion.finish_reason == "stop" and completion.token_ids[-1] == SAMPLING.stop_token_id
    assert completion.versions == (VersionSpan(40, 0, len(completion.token_ids)),)
    assert completion.routing is None


def changed(**about: Any) -> dict[str, Any]:
    """The real answer with parts of its meta_info replaced."""
    return ANSWER | {"meta_info": ANSWER["meta_info"] | about}


@pytest.mark.parametrize(
    "about",
    [
        {"finish_reason": {"type": "abort", "message": "aborted"}},
        {"finish_reason": {"type": "stop", "matched": 4}},
        {"output_token_logprobs": ANSWER["meta_info"]["output_token_logprobs"][1:]},
    ],
    ids=["aborted", "another stop token", "fewer log-probs"],
)
def test_an_answer_that_is_none_is_refused(about: dict[str, Any]) -> None:
    with pytest.raises(EngineError):
        from_json(REQUEST, SAMPLING, changed(**about), tiny_recipe())


def test_spans_and_experts() -> None:
    recipe = tiny_recipe(family="qwen3_moe", moe={"num_experts": 4})
    count = len(ANSWER["output_ids"])
    experts_TLK = np.arange((len(REQUEST.prompt_ids) + count - 1) * 2 * 2, dtype=np.int32).reshape(-1, 2, 2) % 4
    spans = [{"version": "6", "start": 0, "end": 2}, {"version": "7", "start": 2, "end": count}]
    answer = changed(weight_versions=spans, routed_experts=base64.b64encode(experts_TLK.tobytes()).decode())
    completion = from_json(REQUEST, SAMPLING, answer, recipe)
    assert completion.versions == (VersionSpan(6, 0, 2), VersionSpan(7, 2, count))
    assert completion.routing is not None
    assert completion.routing.experts_TLK.tolist() == experts_TLK.tolist()


def test_what_a_worker_is_told_arrives() -> None:
    message = {"update": "a1", "where": {"path": "/ä", "nbytes": 12}, "digests_of": None}
    assert decode(pickle.loads(base64.b64decode(encode(message)))) == message
