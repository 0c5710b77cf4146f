#!/usr/bin/env bash
# The one gate: format, lint, layers, types, and the tests against the built wheel.
# Needs nothing but Python 3.11 or newer; sets up what else it uses in .venv-ci.
set -euo pipefail
cd "$(dirname "$0")"

python="${PYTHON:-python3}"
venv=.venv-ci
stamp="$venv/.locked"

if ! cmp -s requirements.lock "$stamp"; then
    "$python" -c 'import sys; sys.exit("dex-agents needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
    cp requirements.lock "$stamp"
fi
bin="$venv/bin"

step() { printf '\n== %s\n' "$1"; }

step "format"; "$bin/ruff" format --check .
step "lint";   "$bin/ruff" check .
step "wheel"
rm -rf dist
"$bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
"$bin/pip" install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall dist/*.whl
step "layers"; PYTHONPATH=src:backends "$bin/lint-imports" --no-cache
step "types";  "$bin/mypy"
step "tests";  "$bin/pytest" --numprocesses 3 --dist worksteal "$@"
