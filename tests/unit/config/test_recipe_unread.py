"""Keys that nothing would read are refused; at their default, or beside what reads them, they pass."""

import json
from collections.abc import Callable

import pytest

from megarl.config.check_unread import READ_WITH
from megarl.config.errors import RecipeError
from megarl.config.keys import keys
from megarl.config.load import load_recipe

Write = Callable[[str, str], str]

WITH_EXPERTS = ("model.family=qwen3_moe", "model.moe.num_experts=4")
FULLY_ASYNC = ("rollout.engine=vllm", "rl.asynchrony.mode=fully_async")
# Override that nothing reads -> the refusal, and overrides that have it read.
CASES: dict[str, tuple[str, list[str]]] = {
    "model.rope_scaling_factor=32": (
        "model.rope_scaling_factor=32.0 is not read with model.rope_scaling=none; "
        "set model.rope_scaling=llama3, or set model.rope_scaling_factor=8.0.",
        ["model.rope_scaling=llama3"],
    ),
    "model.rope_low_freq_factor=2": (
        "model.rope_low_freq_factor=2.0 is not read with model.rope_scaling=none; "
        "set model.rope_scaling=llama3, or set model.rope_low_freq_factor=1.0.",
        ["model.rope_scaling=llama3"],
    ),
    "model.rope_high_freq_factor=8": (
        "model.rope_high_freq_factor=8.0 is not read with model.rope_scaling=none; "
        "set model.rope_scaling=llama3, or set model.rope_high_freq_factor=4.0.",
        ["model.rope_scaling=llama3"],
    ),
    "model.rope_original_context=4096": (
        "model.rope_original_context=4096 is not read with model.rope_scaling=none; "
        "set model.rope_scaling=llama3, or set model.rope_original_context=8192.",
        ["model.rope_scaling=llama3"],
    ),
    "model.moe.experts_per_token=3": (
        "model.moe.experts_per_token=3 is not read with model.moe.num_experts=0; "
        "give model.moe.num_experts above 0, or set model.moe.experts_per_token=2.",
        [*WITH_EXPERTS],
    ),
    "model.moe.ffn_hidden_size=32": (
        "model.moe.ffn_hidden_size=32 is not read with model.moe.num_experts=0; "
        "give model.moe.num_experts above 0, or set model.moe.ffn_hidden_size=64.",
        [*WITH_EXPERTS],
    ),
    "model.moe.norm_topk_prob=false": (
        "model.moe.norm_topk_prob=false is not read with model.moe.num_experts=0; "
        "give model.moe.num_experts above 0, or set model.moe.norm_topk_prob=true.",
        [*WITH_EXPERTS],
    ),
    "model.moe.dense_layers=[1]": (
        "model.moe.dense_layers=[1] is not read with model.moe.num_experts=0; "
        "give model.moe.num_experts above 0, or set model.moe.dense_layers=[].",
        [*WITH_EXPERTS],
    ),
    "model.moe.aux_loss_coefficient=0.01": (
        "model.moe.aux_loss_coefficient=0.01 is not read with model.moe.num_experts=0; "
        "give model.moe.num_experts above 0, or set model.moe.aux_loss_coefficient=0.0.",
        [*WITH_EXPERTS],
    ),
    "model.moe.router_dtype=fp64": (
        "model.moe.router_dtype=fp64 is not read with model.moe.num_experts=0; "
        "give model.moe.num_experts above 0, or set model.moe.router_dtype=fp32.",
        [*WITH_EXPERTS],
    ),
    "parallel.expert=2": (
        "parallel.expert=2 is not read with model.moe.num_experts=0; "
        "give model.moe.num_experts above 0, or set parallel.expert=1.",
        [*WITH_EXPERTS, "parallel.world_size=2"],
    ),
    "parallel.expert_tensor=1": (
        "parallel.expert_tensor=1 is not read with model.moe.num_experts=0; "
        "give model.moe.num_experts above 0, or set parallel.expert_tensor=null.",
        [*WITH_EXPERTS],
    ),
    "engine.replicas=2": (
        "engine.replicas=2 is not read with rollout.engine=embedded; "
        "set rollout.engine=vllm, or set engine.replicas=1.",
        ["rollout.engine=vllm"],
    ),
    "sync.bucket_mib=8": (
        "sync.bucket_mib=8 is not read with rollout.engine=embedded; "
        "set rollout.engine=vllm, or set sync.bucket_mib=256.",
        ["rollout.engine=vllm"],
    ),
    "sync.timeout_s=7": (
        "sync.timeout_s=7.0 is not read with sync.transport=shared_memory; "
        "set sync.transport=broadcast, or set sync.timeout_s=120.0.",
        ["rollout.engine=vllm", "sync.transport=broadcast"],
    ),
    "sync.folder=buckets": (
        "sync.folder=buckets is not read with sync.transport=shared_memory; "
        "set sync.transport=disk, or set sync.folder=null.",
        ["rollout.engine=vllm", "sync.transport=disk"],
    ),
    "rl.asynchrony.max_staleness=2": (
        "rl.asynchrony.max_staleness=2 is not read with rl.asynchrony.mode=sync; "
        "set rl.asynchrony.mode=fully_async, or set rl.asynchrony.max_staleness=1.",
        [*FULLY_ASYNC, "rl.asynchrony.spanning=keep"],
    ),
    "rl.asynchrony.spanning=keep": (
        "rl.asynchrony.spanning=keep is not read with rl.asynchrony.mode=sync; "
        "set rl.asynchrony.mode=fully_async, or set rl.asynchrony.spanning=correct.",
        [*FULLY_ASYNC],
    ),
    "rl.asynchrony.kv_cache=keep": (
        "rl.asynchrony.kv_cache=keep is not read with rl.asynchrony.mode=sync; "
        "set rl.asynchrony.mode=fully_async, or set rl.asynchrony.kv_cache=recompute.",
        [*FULLY_ASYNC, "rl.asynchrony.spanning=keep"],
    ),
    "rl.routing_replay=experts": (
        "rl.routing_replay=experts is not read with model.moe.num_experts=0; "
        "give model.moe.num_experts above 0, or set rl.routing_replay=none.",
        [*WITH_EXPERTS],
    ),
    "data.path=rows.jsonl": (
        'data.path="rows.jsonl" is not read with data.source=chain_arithmetic; '
        "set data.source=file, or set data.path=null.",
        ["data.source=file"],
    ),
    "data.eval_path=rows.jsonl": (
        'data.eval_path="rows.jsonl" is not read with data.source=chain_arithmetic; '
        "set data.source=file, or set data.eval_path=null.",
        ["data.source=file", "data.path=rows.jsonl"],
    ),
    "data.demonstration_column=d": (
        "data.demonstration_column=d is not read with data.source=chain_arithmetic; "
        "set data.source=file, or set data.demonstration_column=null.",
        ["data.source=file", "data.path=rows.jsonl"],
    ),
    "data.prompt_column=question": (
        "data.prompt_column=question is not read with data.source=chain_arithmetic; "
        "set data.source=file, or set data.prompt_column=prompt.",
        ["data.source=file", "data.path=rows.jsonl"],
    ),
    "data.answer_column=solution": (
        "data.answer_column=solution is not read with data.source=chain_arithmetic; "
        "set data.source=file, or set data.answer_column=answer.",
        ["data.source=file", "data.path=rows.jsonl"],
    ),
    "precision.fp32_head=true": (
        "precision.fp32_head=true is not read with precision.dtype=fp32; "
        "set precision.dtype=bf16, or set precision.fp32_head=false.",
        ["precision.dtype=bf16"],
    ),
    "precision.fp32_residual=true": (
        "precision.fp32_residual=true is not read with precision.dtype=fp32; "
        "set precision.dtype=bf16, or set precision.fp32_residual=false.",
        ["precision.dtype=fp16"],
    ),
    "precision.loss_scale.window=5": (
        "precision.loss_scale.window=5 is not read with precision.dtype=fp32; "
        "set precision.dtype=fp16, or set precision.loss_scale.window=1000.",
        ["precision.dtype=fp16"],
    ),
    "precision.fp8.format=hybrid": (
        "precision.fp8.format=hybrid is not read with precision.fp8.recipe=none; "
        "choose a precision.fp8.recipe, or set precision.fp8.format=e4m3.",
        ["precision.fp8.recipe=mxfp8", "precision.dtype=bf16"],
    ),
    "precision.fp8.emulation=true": (
        "precision.fp8.emulation=true is not read with precision.fp8.recipe=none; "
        "choose a precision.fp8.recipe, or set precision.fp8.emulation=false.",
        ["precision.fp8.recipe=tensorwise"],
    ),
    "precision.fp8.param=true": (
        "precision.fp8.param=true is not read with precision.fp8.recipe=none; "
        "choose a precision.fp8.recipe, or set precision.fp8.param=false.",
        ["precision.fp8.recipe=tensorwise", "precision.dtype=bf16", "parallel.distributed_optimizer=true"],
    ),
    "precision.fp8={recipe: tensorwise, emulation: true, history: 4}": (
        "precision.fp8.history=4 is not read with precision.fp8.recipe=tensorwise; "
        "set precision.fp8.recipe=delayed, or set precision.fp8.history=16.",
        ["precision.fp8.recipe=delayed"],
    ),
    "precision.fp8={recipe: tensorwise, emulation: true, history_algorithm: most_recent}": (
        "precision.fp8.history_algorithm=most_recent is not read with precision.fp8.recipe=tensorwise; "
        "set precision.fp8.recipe=delayed, or set precision.fp8.history_algorithm=max.",
        ["precision.fp8.recipe=delayed"],
    ),
    "precision.fp8={recipe: mxfp8, emulation: true, block_scales: fp32}": (
        "precision.fp8.block_scales=fp32 is not read with precision.fp8.recipe=mxfp8; "
        "set precision.fp8.recipe=blockwise, or set precision.fp8.block_scales=power_of_two.",
        ["precision.fp8.recipe=blockwise"],
    ),
    "rl.gamma=0.9": (
        "rl.gamma=0.9 is not read with rl.advantage=grpo; "
        "set rl.advantage to gae, reinforce_pp or reinforce_pp_baseline, or set rl.gamma=1.0.",
        ["rl.advantage=reinforce_pp_baseline"],
    ),
    "rl.critic.warmup_steps=1": (
        "rl.critic.warmup_steps=1 is not read with rl.advantage=grpo; "
        "set rl.advantage=gae, or set rl.critic.warmup_steps=0.",
        ["rl.advantage=gae"],
    ),
    "rl.critic.optimizer.lr=0.5": (
        "rl.critic.optimizer.lr=0.5 is not read with rl.advantage=grpo; "
        "set rl.advantage=gae, or set rl.critic.optimizer.lr=0.001.",
        ["rl.advantage=gae"],
    ),
    "rl.measure_reference=false": (
        "rl.measure_reference=false is not read with rl.kl.coefficient=0.001; "
        "set rl.kl.coefficient=0, or set rl.measure_reference=true.",
        ["rl.kl.coefficient=0"],
    ),
    "rl.kl={placement: reward, estimator: k1, coefficient: 0}": (
        "rl.kl.placement=reward is not read with rl.kl.coefficient=0.0; "
        "give rl.kl.coefficient above 0, or set rl.kl.placement=loss.",
        ["rl.kl.coefficient=0.1"],
    ),
    "rl.kl={placement: reward, estimator: k1, importance_weighted: true}": (
        "rl.kl.importance_weighted=true is not read with rl.kl.placement=reward; "
        "set rl.kl.placement=loss, or set rl.kl.importance_weighted=false.",
        ["rl.kl.placement=loss"],
    ),
    "rl.kl={coefficient: 0, importance_weighted: true}": (
        "rl.kl.importance_weighted=true is not read with rl.kl.coefficient=0.0; "
        "give rl.kl.coefficient above 0, or set rl.kl.importance_weighted=false.",
        ["rl.kl.coefficient=0.1"],
    ),
    "rl.kl={placement: reward, estimator: k1, cap: 5}": (
        "rl.kl.cap=5.0 is not read with rl.kl.placement=reward; set rl.kl.placement=loss, or set rl.kl.cap=null.",
        ["rl.kl.placement=loss", "rl.kl.estimator=k2"],
    ),
    "rl.kl={coefficient: 0, cap: 5}": (
        "rl.kl.cap=5.0 is not read with rl.kl.coefficient=0.0; give rl.kl.coefficient above 0, or set rl.kl.cap=null.",
        ["rl.kl.coefficient=0.1"],
    ),
    "rl.kl={coefficient: 0, target: 0.1}": (
        "rl.kl.target=0.1 is not read with rl.kl.coefficient=0.0; "
        "give rl.kl.coefficient above 0, or set rl.kl.target=null.",
        ["rl.kl.coefficient=0.1"],
    ),
    "rl.kl.horizon=500": (
        "rl.kl.horizon=500 is not read with rl.kl.target=null; give rl.kl.target, or set rl.kl.horizon=10000.",
        ["rl.kl.target=0.1"],
    ),
    "rl.entropy.alarm_action=stop": (
        "rl.entropy.alarm_action=stop is not read with rl.entropy.alarm_share=null; "
        "give rl.entropy.alarm_share, or set rl.entropy.alarm_action=warn.",
        ["rl.entropy.alarm_share=0.5"],
    ),
    "rl.entropy={alarm_share: 0.5, alarm_clip_max: 0.4}": (
        "rl.entropy.alarm_clip_max=0.4 is not read with rl.entropy.alarm_action=warn; "
        "set rl.entropy.alarm_action=raise_clip, or set rl.entropy.alarm_clip_max=null.",
        ["rl.entropy.alarm_action=raise_clip", "rl.objective.clip_high=0.2"],
    ),
    "rl.entropy={alarm_share: 0.5, alarm_clip_factor: 1.5}": (
        "rl.entropy.alarm_clip_factor=1.5 is not read with rl.entropy.alarm_action=warn; "
        "set rl.entropy.alarm_action=raise_clip, or set rl.entropy.alarm_clip_factor=1.1.",
        ["rl.entropy.alarm_action=raise_clip", "rl.entropy.alarm_clip_max=0.4", "rl.objective.clip_high=0.2"],
    ),
    "rl.correction={mode: decoupled, weighting: icepop, cap: 3}": (
        "rl.correction.cap=3.0 is not read with rl.correction.weighting=icepop; "
        "set rl.correction.weighting=tis, or set rl.correction.cap=2.0.",
        ["rl.correction.weighting=tis"],
    ),
    "rl.correction={mode: decoupled, weighting: tis, low: 0.4}": (
        "rl.correction.low=0.4 is not read with rl.correction.weighting=tis; "
        "set rl.correction.weighting=icepop, or set rl.correction.low=0.5.",
        ["rl.correction.weighting=icepop"],
    ),
    "rl.correction.high=4": (
        "rl.correction.high=4.0 is not read with rl.correction.weighting=none; "
        "set rl.correction.weighting=icepop, or set rl.correction.high=5.0.",
        ["rl.correction={mode: decoupled, weighting: icepop}"],
    ),
    "rl.overlong.penalty=0.5": (
        "rl.overlong.penalty=0.5 is not read with rl.overlong.buffer_tokens=0; "
        "give rl.overlong.buffer_tokens above 0, or set rl.overlong.penalty=1.0.",
        ["rl.overlong.buffer_tokens=8"],
    ),
    "rl.overlong={buffer_tokens: 8, penalty: 0}": (
        "rl.overlong.buffer_tokens=8 is not read with rl.overlong.penalty=0.0; "
        "give rl.overlong.penalty above 0, or set rl.overlong.buffer_tokens=0.",
        ["rl.overlong.penalty=0.1"],
    ),
    "observe.dump_keep=3": (
        "observe.dump_keep=3 is not read with observe.dump_every=0; "
        "give observe.dump_every above 0, or set observe.dump_keep=10.",
        ["observe.dump_every=5"],
    ),
    "rl.dynamic_sampling.max_batches=3": (
        "rl.dynamic_sampling.max_batches=3 is not read with rl.dynamic_sampling.enabled=false; "
        "set rl.dynamic_sampling.enabled=true, or set rl.dynamic_sampling.max_batches=10.",
        ["rl.dynamic_sampling.enabled=true"],
    ),
}


@pytest.mark.parametrize("override", CASES)
def test_a_key_that_nothing_reads(override: str, write: Write) -> None:
    message, reader = CASES[override]
    path = write("a.yaml", "")
    write("rows.jsonl", "")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, [override])
    assert str(caught.value) == message
    load_recipe(path, [override, *reader])


def test_every_row_of_the_table_has_a_case() -> None:
    """By its key and its switch, which both stand in the message."""
    messages = [message for message, _ in CASES.values()]
    for row in READ_WITH:
        assert any(m.startswith(row.key) and f"not read with {row.switch}=" in m for m in messages), row


def test_the_table_names_keys() -> None:
    for row in READ_WITH:
        assert row.switch in keys()
        assert any(path == row.key or path.startswith(f"{row.key}.") for path in keys())


@pytest.mark.parametrize("section", ["data", "precision", "rl"])
def test_defaults_that_are_written_out_pass(section: str, write: Write) -> None:
    """Given as such they say nothing wrong, whatever reads them."""
    given = {path: key.default for path, key in keys().items() if path.startswith(f"{section}.")}
    loaded = load_recipe(write("a.yaml", ""), [f"{path}={json.dumps(value)}" for path, value in given.items()])
    assert {loaded.sources[path] for path in given if path in loaded.sources} == {"command line"}


@pytest.mark.parametrize(
    "off",
    [
        ["sft.steps=0", "sft.batch_size=8", "sft.micro_batch_size=8", "sft.optimizer.lr=0.5"],
        ["sft.steps=5", "rl.steps=0", "rl.prompts_per_step=3", "rl.optimizer.lr=0.5", "rl.objective.clip_high=0.3"],
        ["evaluate.samples_per_prompt=0", "evaluate.ks=[1,2]", "evaluate.solved_from=0.5"],
    ],
)
def test_a_phase_is_turned_off_with_its_settings_in_place(off: list[str], write: Write) -> None:
    load_recipe(write("a.yaml", ""), off)
