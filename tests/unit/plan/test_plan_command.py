"""`megarl plan`: the recipe's numbers, the search, both outputs, exit codes and refusals."""

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megarl.cli import main
from megarl.config.load import load_recipe
from megarl.plan.parameters import pieces
from megarl.plan.plan import nearest_fit, plan_recipe, rows_that_fit
from megarl.plan.recipe import layout_of, shape_of
from megarl.plan.report import verdict

DEMO = str(Path(__file__).resolve().parents[3] / "recipes/demo/grpo_arithmetic.yaml")
# Qwen2.5-7B's body on 8 ranks
LARGE = [
    *("model.num_layers=28", "model.hidden_size=3584", "model.ffn_hidden_size=18944", "model.num_attention_heads=28"),
    *("model.num_query_groups=4", "model.head_dim=128", "model.max_position_embeddings=1024", "sft.steps=0"),
    *("model.tie_embeddings=false", "parallel.world_size=8", "rl.micro_batch_size=1", "rollout.max_batch_size=8"),
    "rl.measure_reference=false",
]
VOCAB = 152_064


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Exit code and JSON."""
    code = main(["plan", DEMO, "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_the_demo_fits(capsys: pytest.CaptureFixture[str]) -> None:
    code, tree = plan(capsys)
    assert code == 0 and tree["fits"] and tree["nearest_that_fits"] is None
    # the model's 4 layers of 64 channels, 30 tokens, tied
    layer = 64 * 128 + 128 + 64 * 64 + 64 + 3 * 64 * 128 + 64
    assert tree["parameters"]["total"] == 4 * layer + 30 * 64 + 64
    assert set(tree["phases"]) == {"sft", "rl"}
    # 127 tokens are read of a context of 128; 128 responses at once; twice, of 256
    assert tree["phases"]["rl"]["tokens_a_micro_batch"] == 127 * 128
    assert tree["phases"]["rl"]["micro_batches"] == 2


def test_a_recipe_of_the_documents_size_names_its_62_5_gb(capsys: pytest.CaptureFixture[str]) -> None:
    """32 sequences of 2,048 tokens that are read, 128,000 words."""
    sizes = ["--vocab-size", "128000", "model.max_position_embeddings=2049", "rl.micro_batch_size=32", "sft.steps=0"]
    _, tree = plan(capsys, *sizes)
    assert tree["phases"]["rl"]["whole_logits"] == 62.5 * 2**30
    main(["plan", DEMO, *sizes])
    assert "held whole in fp32: 62.5 GiB." in capsys.readouterr().out


def test_what_does_not_fit_names_the_nearest_layout_that_does(capsys: pytest.CaptureFixture[str]) -> None:
    code, tree = plan(capsys, "--gpu-memory", "80", "--vocab-size", str(VOCAB), *LARGE)
    assert code == 1 and not tree["fits"]
    nearest = tree["nearest_that_fits"]
    assert nearest["peak_bytes"] <= 80 * 2**30 < tree["peak_bytes"]
    layout = nearest["layout"]
    assert layout["world_size"] == 8
    again, found = plan(
        capsys,
        *("--gpu-memory", "80", "--vocab-size", str(VOCAB), *LARGE),
        *(f"parallel.{name}={str(layout[name]).lower()}" for name in ("tensor", "sequence", "pipeline", "context")),
    )
    assert again == 0 and found["peak_bytes"] == nearest["peak_bytes"]


def test_no_layout_is_nearer_than_the_one_named() -> None:
    """Every layout of 8 ranks, by its own plan."""
    recipe = load_recipe(DEMO, LARGE).recipe
    limit = 80 * 2**30
    nearest, least = nearest_fit(recipe, limit, VOCAB)
    assert nearest is not None and least.peak <= nearest.peak

    def doublings(plan_data: int, tensor: int, pipeline: int, context: int) -> float:
        return abs(math.log2(8 / plan_data)) + math.log2(tensor * pipeline * context)

    own = nearest.parallel
    distance = doublings(own.data, own.tensor, own.pipeline, own.context)
    for tensor, pipeline, context in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4, 8)):
        if tensor * pipeline * context > 8:
            continue
        parallel = replace(recipe.parallel, tensor=tensor, pipeline=pipeline, context=context)
        if plan_recipe(replace(recipe, parallel=parallel), VOCAB).peak <= limit:
            assert doublings(parallel.data, tensor, pipeline, context) >= distance


# two layers of 64 experts of 2 x 1.6 million weights, on four ranks
EXPERTS = [
    *("model.family=qwen3_moe", "model.moe={num_experts: 64, ffn_hidden_size: 1024}", "model.num_layers=2"),
    *("model.hidden_size=1024", "parallel.world_size=4", "sft.steps=0", "rl.micro_batch_size=1"),
    *("rl.measure_reference=false", "rollout.max_batch_size=1"),
]


@pytest.mark.parametrize("gpu_memory", ["5.5", "4.0", "0.1"])
def test_experts_are_spread_where_that_fits(gpu_memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed, given back word for word, is a recipe that passes its checks, and needs what was said."""
    arguments = [*EXPERTS, "--gpu-memory", gpu_memory]
    code, tree = plan(capsys, *arguments)
    assert code == 1
    named = tree["nearest_that_fits"] or tree["least"]
    assert named["layout"]["expert"] > 1
    assert main(["plan", DEMO, *arguments]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    again, found = plan(capsys, *arguments, *last[last.index("parallel.tensor=") :].split())
    assert again == int(tree["nearest_that_fits"] is None)
    assert found["peak_bytes"] == named["peak_bytes"] and found["layout"] == named["layout"]


def test_an_experts_number_adds_no_work() -> None:
    """To any of the hundreds of layouts that are tried."""
    many = ["model.moe={num_experts: 4096, ffn_hidden_size: 16}", "parallel.world_size=64", "rl.prompts_per_step=64"]
    recipe = load_recipe(DEMO, [*EXPERTS, *many]).recipe
    shape = shape_of(recipe, 30)
    assert len(pieces(shape, layout_of(recipe))) == len(pieces(replace(shape, experts=2), layout_of(recipe)))


def test_the_rollout_that_fits_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The engine's batch alone is too large: the number that is named fits, and one more does not."""
    overrides = ["rl.micro_batch_size=1", "sft.micro_batch_size=1"]
    assert main(["plan", DEMO, "--gpu-memory", "0.2", *overrides]) == 1
    limit = int(0.2 * 2**30)
    recipe = load_recipe(DEMO, overrides).recipe
    rows = min(rows_that_fit(phase, limit) for phase in plan_recipe(recipe).phases)
    assert f"rollout.max_batch_size={rows} or less" in capsys.readouterr().out
    for size, fits in ((rows, True), (rows + 1, False)):
        recipe.rollout.max_batch_size = size
        assert (plan_recipe(recipe).peak <= limit) == fits


def test_tables_name_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["rl.advantage=gae", "rl.kl={coefficient: 0.1, estimator: full}", "parallel.world_size=4"]
    layout = ["parallel.tensor=2", "parallel.pipeline=2", "sft.micro_batch_size=1", "rl.micro_batch_size=1"]
    assert main(["plan", DEMO, *overrides, *layout]) == 0
    out = capsys.readouterr().out
    parts = ("embedding", "attention", "mlp", "weights", "gradients", "optimizer", "activations", "head", "logits")
    for part in (*parts, "reference", "critic", "engine weights", "KV cache", "tensor", "pipeline", "shared embedding"):
        assert part in out, part
    assert "stage 0" in out and "stage 1" in out and "Fits: " in out


def test_no_layout_that_fits_names_the_least(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", DEMO, "--gpu-memory", "0.0001"]) == 1
    assert "No layout of parallel.world_size=1 fits; the least is " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu-memory", "-1"], "--gpu-memory=-1 is no memory above 0; give the GiB of one GPU, such as 80."),
        (["--gpu-memory", "nan"], "--gpu-memory=nan is no memory above 0; give the GiB of one GPU, such as 80."),
        (["--vocab-size", "0"], "--vocab-size=0 is below 1; give the number of tokens."),
        (
            ["sft.steps=0", "rl.steps=0"],
            "rl.steps=0 trains nothing, as sft.steps is 0 too; set one of the two above 0 to plan it.",
        ),
        (["parallel.tensor=3"], "parallel.world_size=1 is not a multiple"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", DEMO, *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith(f"megarl: error: {sentence}") and error.count("\n") == 1


@pytest.mark.parametrize(
    "text", ['{"model": {"vocab": 3}}', '{"model": {"vocab": {}}, "added_tokens": 3}', "[" * 100_000]
)
def test_a_tokenizer_that_cannot_be_counted_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    assert main(["plan", DEMO, f"tokenizer={{kind: hf, path: {tmp_path}}}"]) == 2
    assert "holds no tokenizer.json whose tokens can be counted; give the number" in capsys.readouterr().err


def test_a_plan_is_made_without_torch() -> None:
    code = (
        "import sys; from megarl.cli import main\n"
        f"assert main(['plan', {DEMO!r}]) == 0\n"
        "heavy = {'torch', 'megatron', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_layout_that_is_found_takes_back_what_belongs_to_another_pipeline() -> None:
    own = ["parallel.world_size=4", "parallel.pipeline=2", "parallel.virtual=2", "parallel.pipeline_layers=[1,1,1,1]"]
    of_recipe = plan_recipe(load_recipe(DEMO, [*own, "rl.micro_batch_size=1", "sft.micro_batch_size=1"]).recipe)
    other = replace(of_recipe.parallel, pipeline=4, virtual=1, pipeline_layers=None)
    text = verdict(of_recipe, 1, replace(of_recipe, parallel=other), None)
    assert text.endswith("parallel.pipeline=4 parallel.context=1 parallel.virtual=1 parallel.pipeline_layers=null")
    assert verdict(of_recipe, 1, of_recipe, None).endswith("parallel.pipeline=2 parallel.context=1")
