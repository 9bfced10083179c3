"""What one rank sees of a model with experts: its weights, and its checkpoints. For test_moe_weights."""

from pathlib import Path
from typing import Any

from megarl.megatron.world import join_world
from tests.parallel.families_worker import round_trips
from tests.parallel.weights_worker import resume
from tests.unit.megatron.tiny import tiny_recipe

# isort: split
from megatron.core import parallel_state


def everything(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, Any]:
    """Round trips, and what differs after a resume."""
    trips = round_trips(rank, world_size, args, result_dir)
    resumed = {}
    for name, sizes in args["layouts"].items():
        layout = join_world(tiny_recipe(world_size=world_size, **sizes).parallel, seed=1)
        resumed[name] = resume(layout, {**sizes, **args["models"]["moe"]}, result_dir / f"checkpoint {name}", 2)
        parallel_state.destroy_model_parallel()
    return {"trips": trips, "resumed": resumed}
