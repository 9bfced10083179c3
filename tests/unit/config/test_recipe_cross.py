"""Refusals of keys that contradict each other: each message, whole."""

import json
from collections.abc import Callable

import pytest

from megarl.config.errors import RecipeError
from megarl.config.load import load_recipe
from megarl.config.schema import Recipe
from megarl.config.validate import validate

Write = Callable[[str, str], str]

# Text of the recipe -> the refusal. Files that cases name: rows.jsonl, rows.csv, and the empty folder `empty`.
CASES = {
    "rollout: {top_p: 0.9}\nrl: {kl: {estimator: full}}": (
        "rollout.top_p=0.9 makes rl.kl.estimator=full infinite where policy and reference leave different tokens; "
        "set top_p=1 or take k2 or k3."
    ),
    "rollout: {top_k: 20}\nrl: {kl: {estimator: full}}": (
        "rollout.top_k=20 makes rl.kl.estimator=full infinite where policy and reference leave different tokens; "
        "set top_k=0 or take k2 or k3."
    ),
    "rollout: {top_k: 1}": (
        "rollout.top_k=1 leaves RL one token to draw, whose log-prob is 0 whatever the weights; "
        "give at least 2, or 0 for all tokens."
    ),
    "parallel: {world_size: 3, tensor: 2}": (
        "parallel.world_size=3 is not a multiple of parallel.tensor*parallel.pipeline*parallel.context=2; "
        "give a multiple of it, such as 4."
    ),
    "parallel: {world_size: 2, sequence: true}": (
        "parallel.sequence=true shares tokens over tensor-parallel ranks, and parallel.tensor=1 has none; "
        "set it to false or parallel.tensor above 1."
    ),
    "rl: {micro_batch_tokens: 127}": (
        "rl.micro_batch_tokens=127 holds no sequence of model.max_position_embeddings=128 tokens; "
        "give at least 128 or shorten the context."
    ),
    "parallel: {world_size: 2, context: 2}\nsft: {steps: 1, micro_batch_tokens: 65}\n"
    "model: {max_position_embeddings: 129}": (
        "sft.micro_batch_tokens=65 holds no sequence of model.max_position_embeddings=129 tokens, padded to a multiple "
        "of 4; give at least 66 or shorten the context."
    ),
    "parallel: {world_size: 3, tensor: 3}": (
        "parallel.tensor=3 does not divide model.num_attention_heads=2; give a divisor of it."
    ),
    "parallel: {world_size: 2, tensor: 2}\nmodel: {ffn_hidden_size: 7}": (
        "parallel.tensor=2 does not divide model.ffn_hidden_size=7; give a divisor of it."
    ),
    "model: {num_attention_heads: 4, num_query_groups: 3}": (
        "model.num_query_groups=3 does not divide model.num_attention_heads=4; give a divisor of it."
    ),
    "parallel: {world_size: 6, tensor: 6}\nmodel: {num_attention_heads: 12, num_query_groups: 4, ffn_hidden_size: 6}": (
        "model.num_query_groups=4 is neither a multiple nor a divisor of parallel.tensor=6; change one of the two."
    ),
    # (8 + 2) x 2 channels over 8 ranks, which share the one key-value head
    "parallel: {world_size: 8, tensor: 8}\nmodel: {num_attention_heads: 8, head_dim: 2}": (
        "model.num_query_groups=1 makes 20 channels of query, key and value (model.head_dim=2), which "
        "parallel.tensor=8 does not divide; give more of them or fewer tensor ranks."
    ),
    "model: {head_dim: 31}": ("model.head_dim=31 is odd and rotary embedding turns pairs of channels; give 30 or 32."),
    "model: {rope_scaling: llama3, rope_high_freq_factor: 1}": (
        "model.rope_high_freq_factor=1.0 is not above model.rope_low_freq_factor=1.0; give more than 1.0, such as 4.0."
    ),
    "parallel: {world_size: 2, pipeline: 2}\nmodel: {num_layers: 3}": (
        "parallel.pipeline=2 does not divide model.num_layers=3; give a divisor of it or parallel.pipeline_layers."
    ),
    "parallel: {world_size: 2, pipeline: 2, virtual: 2}\nmodel: {num_layers: 6}": (
        "parallel.virtual=2 times parallel.pipeline=2 does not divide model.num_layers=6; "
        "give a divisor of it or parallel.pipeline_layers."
    ),
    "model: {family: qwen3_moe}": (
        "model.moe.num_experts=0 leaves model.family=qwen3_moe without experts; give their number or a dense family."
    ),
    "model: {moe: {num_experts: 4}}": (
        "model.moe.num_experts=4 is of a family with routed experts, and model.family=qwen2 is dense; "
        "set it to 0 or model.family=qwen3_moe."
    ),
    "model: {family: qwen3_moe, moe: {num_experts: 4, experts_per_token: 5}}": (
        "model.moe.experts_per_token=5 is more than model.moe.num_experts=4; give at most 4."
    ),
    "model: {family: qwen3_moe, moe: {num_experts: 4, experts_per_token: 1}}": (
        "model.moe.norm_topk_prob=true makes the one gate of model.moe.experts_per_token=1 always 1, which leaves the "
        "router no gradient; set it to false or route to 2 experts or more."
    ),
    "model: {family: qwen3_moe, moe: {num_experts: 4, dense_layers: [2]}}": (
        "model.moe.dense_layers=[2] is no rising list of layers from 0 to model.num_layers-1=1; "
        "name each such layer once, in rising order."
    ),
    "model: {family: qwen3_moe, moe: {num_experts: 4, dense_layers: [0, 0]}}": (
        "model.moe.dense_layers=[0, 0] is no rising list of layers from 0 to model.num_layers-1=1; "
        "name each such layer once, in rising order."
    ),
    "model: {family: qwen3_moe, moe: {num_experts: 4, dense_layers: [0, 1]}}": (
        "model.moe.dense_layers=[0, 1] leaves none of the model.num_layers=2 layers for the experts; "
        "leave a layer out of it or take a dense family."
    ),
    "model: {family: qwen3_moe, moe: {num_experts: 4}}\nparallel: {world_size: 3, expert: 3}": (
        "parallel.expert=3 does not divide model.moe.num_experts=4; give a divisor of it."
    ),
    "model: {family: qwen3_moe, moe: {num_experts: 4, ffn_hidden_size: 7}}\n"
    "parallel: {world_size: 2, tensor: 2, sequence: true}": (
        "parallel.tensor=2 does not divide model.moe.ffn_hidden_size=7; give a divisor of it."
    ),
    "model: {family: qwen3_moe, moe: {num_experts: 4, ffn_hidden_size: 7}}\n"
    "parallel: {world_size: 2, expert_tensor: 2}": (
        "parallel.expert_tensor=2 does not divide model.moe.ffn_hidden_size=7; give a divisor of it."
    ),
    "model: {family: qwen3_moe, moe: {num_experts: 4}}\n"
    "parallel: {world_size: 2, tensor: 2, sequence: true, expert: 2}": (
        "parallel.expert=2 makes groups of 4 processes (parallel.expert*expert_tensor*pipeline, expert_tensor=2), "
        "which do not divide parallel.world_size=2; change one of them."
    ),
    "model: {family: qwen3_moe, moe: {num_experts: 4}}\nparallel: {world_size: 2, tensor: 2}": (
        "parallel.sequence=false would route every token on each of the parallel.tensor=2 ranks; set it to true."
    ),
    "parallel: {virtual: 2}": (
        "parallel.virtual=2 interleaves the stages of a pipeline, and parallel.pipeline=1 is none; "
        "set it to 1 or parallel.pipeline above 1."
    ),
    "parallel: {world_size: 2, pipeline: 2, pipeline_layers: [2]}": (
        "parallel.pipeline_layers=[2] does not name the layers of parallel.pipeline*parallel.virtual=2 stages; "
        "give 2 numbers."
    ),
    "parallel: {world_size: 2, pipeline: 2, pipeline_layers: [3, 2]}\nmodel: {num_layers: 4}": (
        "parallel.pipeline_layers=[3, 2] does not share out model.num_layers=4; give numbers from 1 up whose sum is 4."
    ),
    "parallel: {world_size: 2, pipeline: 2, pipeline_layers: [4, 0]}\nmodel: {num_layers: 4}": (
        "parallel.pipeline_layers=[4, 0] does not share out model.num_layers=4; give numbers from 1 up whose sum is 4."
    ),
    "parallel: {world_size: 2, pipeline: 2, virtual: 2}\nmodel: {num_layers: 4}\nrl: {micro_batch_size: 256}": (
        "rl.micro_batch_size=256 makes 1 micro-batches of a rank's 256 rollouts, and parallel.virtual=2 runs them 2 "
        "at a time (parallel.pipeline); give a size of which 2, or a multiple, make up 256."
    ),
    "model: {init_from: nowhere}": ("model.init_from=nowhere is not a folder; give the folder of a downloaded model."),
    "model: {init_from: empty}": ("model.init_from=empty holds no config.json; give a folder in Hugging Face layout."),
    "sft: {steps: 5, optimizer: {warmup_steps: 5}}": (
        "sft.optimizer.warmup_steps=5 leaves no step after the warm-up of the 5 optimizer steps of the phase; "
        "give at most 4."
    ),
    "tokenizer: {kind: hf}": "tokenizer.path=null is needed with tokenizer.kind=hf; give the tokenizer's folder.",
    "tokenizer: {kind: hf, path: nowhere}": (
        "tokenizer.path=nowhere is not a folder; give the folder of a Hugging Face tokenizer."
    ),
    "tokenizer: {path: empty}": (
        "tokenizer.path=empty is not read with tokenizer.kind=characters; set kind=hf or drop the path."
    ),
    "tokenizer: {alphabet: ''}": (
        'tokenizer.alphabet="" is empty; list the characters that prompts and responses use.'
    ),
    "tokenizer: {alphabet: abca}": "tokenizer.alphabet=abca holds 'a' more than once; keep one of them.",
    "tokenizer: {words: ['']}": "tokenizer.words=[\"\"] holds ''; put single characters in tokenizer.alphabet.",
    "tokenizer: {words: [x]}": "tokenizer.words=[\"x\"] holds 'x'; put single characters in tokenizer.alphabet.",
    "tokenizer: {words: [xy, xy]}": ('tokenizer.words=["xy", "xy"] holds \'xy\' more than once; keep one of them.'),
    "data: {source: file}": "data.path=null is needed with data.source=file; give a .jsonl or .parquet file.",
    "data: {source: file, path: rows.csv}": (
        'data.path="rows.csv" is neither .jsonl nor .parquet; convert the file to one of them.'
    ),
    "data: {source: file, path: no.jsonl}": (
        'data.path="no.jsonl" is not a file; check the path, which is relative to the working folder.'
    ),
    "data: {source: file, path: rows.jsonl, eval_path: no.parquet}": (
        'data.eval_path="no.parquet" is not a file; check the path, which is relative to the working folder.'
    ),
    "data: {prompt_template: 'Q: '}": 'data.prompt_template="Q: " holds {prompt} 0 times; write it exactly once.',
    "data: {prompt_template: '{prompt}{prompt}'}": (
        'data.prompt_template="{prompt}{prompt}" holds {prompt} 2 times; write it exactly once.'
    ),
    "data: {source: file, path: rows.jsonl, options: {terms: 4}}": (
        'data.options={"terms": 4} is not read with data.source=file; '
        "set data.options=null to drop what this recipe or a base recipe gives."
    ),
    "sft: {steps: 5}\ndata: {source: file, path: rows.jsonl}": (
        "data.demonstration_column=null is needed by sft.steps=5 with data.source=file; "
        "name the column of responses or set sft.steps=0."
    ),
    "reward: {name: boxed}": (
        "reward.name=boxed is neither a registered reward nor a dotted path like module.function; "
        "did you mean boxed_answer?"
    ),
    "reward: {name: zzz}": (
        "reward.name=zzz is neither a registered reward nor a dotted path like module.function; "
        "use one of boxed_answer, exact, reasoning_gym."
    ),
    "reward: {name: reasoning_gym}": (
        "reward.name=reasoning_gym cannot score data.source=chain_arithmetic; set data.source=reasoning_gym."
    ),
    "rl: {steps: 0}\nevaluate: {samples_per_prompt: 0}": (
        "rl.steps=0 leaves nothing to do, as sft.steps and evaluate.samples_per_prompt are 0 too; "
        "set one of the three above 0."
    ),
    "rl: {objective: {name: grpoo}}": (
        "rl.objective.name=grpoo is neither a registered objective nor a dotted path like module.name; "
        "did you mean grpo?"
    ),
    "rl: {objective: {name: 'mine.'}}": (
        'rl.objective.name="mine." is neither a registered objective nor a dotted path like module.name; '
        "use one of ppo, grpo, dapo, dr_grpo, gspo, cispo, k2_5, dppo_tv, decoupled_ppo, reinforce, clip_cov, kl_cov."
    ),
    "rl: {objective: {options: {a: 1}}}": (
        'rl.objective.options={"a": 1} is not read by the registered rl.objective.name=grpo; '
        "give an objective's dotted path or set rl.objective.options=null."
    ),
    "rl: {samples_per_prompt: 1, micro_batch_size: 16}": (
        "rl.samples_per_prompt=1 gives every response an advantage of 0 with rl.advantage=grpo; give at least 2."
    ),
    "rl: {prompts_per_step: 2, samples_per_prompt: 3, updates_per_step: 4}": (
        "rl.updates_per_step=4 does not divide the 6 rollouts of a step (prompts_per_step*samples_per_prompt); "
        "give a divisor of that number."
    ),
    "parallel: {world_size: 3}": (
        "parallel.world_size=3 leaves 3 data-parallel ranks, which do not divide the 256 rollouts of an update; "
        "change one of the two."
    ),
    "rl: {micro_batch_size: 60}": (
        "rl.micro_batch_size=60 does not divide the 256 rollouts of a rank's update; the nearest size that does is 64."
    ),
    "rl: {updates_per_step: 2, micro_batch_size: 256}\nparallel: {world_size: 2}": (
        "rl.micro_batch_size=256 does not divide the 64 rollouts of a rank's update; the nearest size that does is 64."
    ),
    "sft: {steps: 1, batch_size: 33}\nparallel: {world_size: 2}": (
        "parallel.world_size=2 leaves 2 data-parallel ranks, which do not divide the 33 demonstrations of an update; "
        "change one of the two."
    ),
    "sft: {steps: 1, batch_size: 24}": (
        "sft.micro_batch_size=32 does not divide the 24 demonstrations of a rank's update; "
        "the nearest size that does is 24."
    ),
    # a prime: all of its divisors are found without counting up to it
    "sft: {steps: 1, batch_size: 999983}": (
        "sft.micro_batch_size=32 does not divide the 999983 demonstrations of a rank's update; "
        "the nearest size that does is 1."
    ),
    "rl: {prompts_per_step: 1000000, samples_per_prompt: 999983, micro_batch_size: 999985}": (
        "rl.micro_batch_size=999985 does not divide the 999983000000 rollouts of a rank's update; "
        "the nearest size that does is 999983."
    ),
    "rollout: {max_new_tokens: 128}": (
        "rollout.max_new_tokens=128 leaves no room for a prompt in model.max_position_embeddings=128; "
        "give at most 127, less the longest prompt."
    ),
    "evaluate: {ks: []}": ("evaluate.ks=[] is empty; list at least one k or set evaluate.samples_per_prompt=0."),
    "evaluate: {ks: [0, 1]}": "evaluate.ks=[0, 1] holds a k below 1; give whole numbers from 1 up.",
    "evaluate: {ks: [2, 1]}": "evaluate.ks=[2, 1] is not in rising order without repeats; write [1, 2].",
    "evaluate: {ks: [1, 1]}": "evaluate.ks=[1, 1] is not in rising order without repeats; write [1].",
    "evaluate: {ks: [1, 128]}": (
        "evaluate.ks=[1, 128] holds 128, above evaluate.samples_per_prompt=64; drop that k or sample more."
    ),
}

# Recipes next to a refused one, which must pass.
ALLOWED = (
    "model: {family: qwen3_moe, moe: {num_experts: 4, experts_per_token: 1, norm_topk_prob: false}}",
    "model: {family: qwen3_moe, moe: {num_experts: 4, experts_per_token: 4, dense_layers: [1]}}",
    "model: {family: qwen3_moe, moe: {num_experts: 4}}\n"
    "parallel: {world_size: 4, tensor: 2, sequence: true, expert: 4, expert_tensor: 1}",
    "parallel: {world_size: 4, tensor: 2, pipeline: 2}",
    "parallel: {world_size: 2, tensor: 2}\nmodel: {num_query_groups: 1}",
    "model: {init_from: weights}",
    "tokenizer: {kind: hf, path: empty}",
    "tokenizer: {kind: hf, path: empty, alphabet: aa}",
    "tokenizer: {words: []}",
    "data: {source: file, path: rows.jsonl}",
    "sft: {steps: 5}\ndata: {source: file, path: rows.jsonl, demonstration_column: solution}",
    "data: {source: reasoning_gym}\nreward: {name: reasoning_gym}",
    "reward: {name: my_package.rewards.score}",
    "rl: {objective: {name: my_package.loss, options: {a: 1}}}",
    "rl: {steps: 0}",
    "rl: {steps: 0, samples_per_prompt: 1, micro_batch_size: 63}",
    "sft: {batch_size: 33}",
    "rl: {steps: 0}\nsft: {steps: 1}\nevaluate: {samples_per_prompt: 0}",
    "evaluate: {samples_per_prompt: 0, ks: [1, 128]}",
    "evaluate: {samples_per_prompt: 0, ks: []}",
    "evaluate: {ks: [1, 64]}",
    "rollout: {max_new_tokens: 127}",
    "rl: {prompts_per_step: 2, samples_per_prompt: 3, updates_per_step: 3, micro_batch_size: 1}\n"
    "parallel: {world_size: 2}",
)


@pytest.fixture
def folder(write: Write) -> None:
    """The files that the cases name."""
    write("rows.jsonl", "")
    write("rows.csv", "")
    shape = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    held = {"model_type": "llama", "max_position_embeddings": 128, **shape}
    write("weights/config.json", json.dumps(held))
    write("weights/model.safetensors", "")
    write("empty/nothing", "")


@pytest.mark.parametrize("text", CASES)
def test_contradiction(text: str, write: Write, folder: None) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write("a.yaml", text))
    assert str(caught.value) == CASES[text]


@pytest.mark.parametrize("text", ALLOWED)
def test_neighbour_of_a_contradiction(text: str, write: Write, folder: None) -> None:
    load_recipe(write("a.yaml", text))


def test_validate_takes_a_recipe_made_in_python() -> None:
    recipe = Recipe()
    validate(recipe)
    recipe.model.head_dim = 33
    with pytest.raises(RecipeError, match=r"^model\.head_dim=33 is odd"):
        validate(recipe)
