#!/usr/bin/env bash
# Write ops/constraints.txt: the exact version of every package that a clean install of the project brings.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
clean=$(mktemp -d)
trap 'rm -rf "$clean"' EXIT
"${PYTHON:-python3.11}" -m venv "$clean/venv"
"$clean/venv/bin/python" -m pip install --quiet --upgrade pip setuptools virtualenv
"$clean/venv/bin/python" -m pip install --quiet --no-build-isolation --editable '.[test,demo,bench,spark]'
{
    echo "# Exact versions of all packages, direct and transitive. Written by \`make pins\`; do not edit."
    "$clean/venv/bin/python" -m pip freeze --all | grep -E '^[A-Za-z0-9_.-]+==' | grep -v -E '^pip=='
} >"$clean/constraints.txt"
mv "$clean/constraints.txt" ops/constraints.txt
