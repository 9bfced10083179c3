#!/usr/bin/env python3
"""Prints, as JSON, the fields of the requests that megarl sends to SGLang, from the SGLang that is installed.

Run it in SGLang's environment, from the repository's root:
SGLANG_USE_CPU_ENGINE=1 PYTHONPATH=tests/engines/sglang_stand_ins
  python tools/sglang_fields.py > tests/unit/rollout/sglang_fields.json
"""

import dataclasses
import json
from importlib.metadata import version

import msgspec
from sglang.srt.managers import io_struct
from sglang.srt.sampling.sampling_params import SamplingParams

REQUESTS = (
    "GenerateReqInput",
    "PauseGenerationReqInput",
    "BeginWeightUpdateReqInput",
    "UpdateWeightsFromTensorReqInput",
    "EndWeightUpdateReqInput",
    "ContinueGenerationReqInput",
    "AbortReq",
)


def fields(request: type) -> list[str]:
    """Names of a request's fields."""
    own = dataclasses.fields(request) if dataclasses.is_dataclass(request) else msgspec.structs.fields(request)
    return sorted(field.name for field in own)


if __name__ == "__main__":
    found = {name: fields(getattr(io_struct, name)) for name in REQUESTS}
    found["SamplingParams"] = fields(SamplingParams)
    print(json.dumps({"sglang": version("sglang"), **found}, indent=1))
