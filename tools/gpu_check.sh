#!/usr/bin/env bash
# Runs what exists on a GPU alone (tests marked gpu) within 8 minutes and prints a table; without a GPU it says what it
# skipped. $PYTHON is the environment's interpreter.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
report=$(mktemp)
trap 'rm -f "$report"' EXIT
# no test begins after 380 s and none takes more than 90, so that pytest ends by itself and its report is whole
timeout -k 5 475 "$python" -m pytest tests/gpu -m gpu -p no:cacheprovider --timeout 90 --session-timeout 380 \
    --junitxml "$report" >&2
code=$?
[ "$code" -ge 124 ] && echo "ended after 8 minutes, before pytest wrote its report" >&2
"$python" tools/gpu_table.py "$report"
exit "$code"
