#!/bin/sh
# Checks the library on a machine with a card: needs torch 2.11 or newer and pytest, no Ray, no model.
# Usage: tests/gpu/run.sh [pytest options]     PYTHON=... chooses the interpreter.
# Each test prints one line of JSON with what it measured; TENURE_GPU_LOG=FILE collects them.
set -eu
cd "$(dirname "$0")/../.."
export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"
exec "${PYTHON:-python}" -m pytest -m gpu tests/gpu -p no:cacheprovider "$@"
