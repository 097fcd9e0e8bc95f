#!/usr/bin/env bash
# Write the locks anew, after a change of pyproject.toml or constraints.txt, or of the version of uv.
# torch is left out, with what only its CUDA builds need: it comes as one of several builds (CPU,
# CUDA versions) from the index of whoever installs, each with hashes of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
left_out=(torch $(uv pip compile --quiet --no-annotate --no-header --universal \
  --python-version 3.11 -c constraints.txt - <<<torch | grep -oE '^(nvidia|cuda)[a-z0-9-]*'))
compile=(uv pip compile --quiet --no-annotate --no-header --universal --python-version 3.11 --generate-hashes)
lock() {
  "${compile[@]}" -c constraints.txt "${left_out[@]/#/--no-emit-package=}" \
    pyproject.toml .ci/locks/build.in "${@:2}" | sed '/^$/d' > ".ci/locks/$1.txt"
}
lock runtime --extra all --extra kahypar
lock dev --extra dev
"${compile[@]}" --output-file .ci/locks/uv.txt - <<< "$(grep -oE '^uv==[0-9.]+' .ci/locks/uv.txt)" > /dev/null
