#!/usr/bin/env bash
# Runs what exists on a GPU alone (tests marked gpu) within 8 minutes and prints a table; without a GPU it says what it
# skipped. $PYTHON is the environment's interpreter.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
report=$(mktemp)
trap 'rm -f "$report"' EXIT
timeout 480 "$python" -m pytest tests/gpu -m gpu -p no:cacheprovider --junitxml "$report" >&2
code=$?
[ "$code" -eq 124 ] && echo "ended after 8 minutes; what follows is incomplete" >&2
"$python" tools/gpu_table.py "$report"
exit "$code"
