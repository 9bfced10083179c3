#!/usr/bin/env bash
# Makes the virtual environment $VENV with megatron-core 0.19, on any supported Python.
#
# megatron-core 0.19 declares Python 3.12 and newer. On 3.11 it is built from its source distribution (about 40 s of a
# C++ compiler), past that declaration; it imports triton without asking whether there is a GPU.
set -euo pipefail
: "${VENV:?the folder of the environment}"
release=0.19.2
"${PYTHON:-python3}" -m venv "$VENV"
pip=("$VENV/bin/python" -m pip)
"${pip[@]}" install --quiet --upgrade pip
"${pip[@]}" install --quiet -c constraints.txt -e ".[dev]"
if "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then
    "${pip[@]}" install --quiet -c constraints.txt triton==3.9.0 pybind11==3.1.0 setuptools einops packaging
    "${pip[@]}" install --quiet --ignore-requires-python --no-deps --no-binary megatron-core "megatron-core==$release"
fi
"$VENV/bin/python" -c "import importlib.metadata as m; assert m.version('megatron-core') == '$release', m.version('megatron-core')"
