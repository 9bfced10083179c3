#!/usr/bin/env bash
# Puts SGLang into the virtual environment $VENV, for its CPU path. Minutes, and 3.4 GB.
#
# Its own pins ask for CUDA builds of torch and of its kernels, so every package is named and none brings others along.
# This is outside what SGLang supports: tests put stand-ins for its kernels beside it (tests/engines/sglang_stand_ins).
set -euo pipefail
: "${VENV:?the folder of the environment}"
"$VENV/bin/python" -m pip install --quiet --no-deps -r constraints-sglang.txt
SGLANG_USE_CPU_ENGINE=1 PYTHONPATH=tests/engines/sglang_stand_ins "$VENV/bin/python" -c "import sglang.srt.entrypoints.http_server"
