#!/usr/bin/env bash
# Installs sbpair into a virtual environment: the source that this file is part of, or INPUT_VERSION from PyPI.
# Usage: install.sh DIRECTORY   environment: INPUT_EXTRAS, INPUT_VERSION, PYTHON [default: python3], GITHUB_PATH
set -euo pipefail

target=$1
extras=${INPUT_EXTRAS:-} version=${INPUT_VERSION:-}
if [[ -n $extras && ! $extras =~ ^[a-z]+(,[a-z]+)*$ ]]; then
  printf 'error: extras is not a list of names\nhint: separate them by commas, as in: extras: relay,spark\n' >&2
  exit 2
fi
if [[ -n $version && ! $version =~ ^[0-9][0-9a-z.]*$ ]]; then
  printf 'error: version is not a version\nhint: write one, as in: version: 0.1.0\n' >&2
  exit 2
fi

package=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
if [[ -n $version ]]; then
  requirement="sbpair${extras:+[$extras]}==$version"
else
  requirement="$package${extras:+[$extras]}"
fi
"${PYTHON:-python3}" -m venv "$target"
"$target/bin/python" -m pip install --quiet --disable-pip-version-check "$requirement"
# Later steps of the job can type sbpair. A link, so that the environment's Python does not hide the job's.
mkdir -p "$target/path"
ln -sf "$target/bin/sbpair" "$target/path/sbpair"
if [[ -n ${GITHUB_PATH:-} ]]; then
  printf '%s\n' "$target/path" >>"$GITHUB_PATH"
fi
