#!/bin/sh
# Pack the source, the plans and small wheels for a machine with a GPU and without a network:
#   sh gpu/pack.sh [DIR]      writes DIR/dcp-source.tar.gz and DIR/dcp-wheels.tar.gz, each below 60 MiB
# There: unpack both in one folder, then
#   python3 -m pip install --no-index --find-links wheels click lark lazy_loader rich
#   python3 gpu/first_light.py
# torch, numpy and triton must be there; numba and pyarrow are not needed to run plans.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/dist/gpu}
mkdir -p "$out"
cd "$root"
test -d gpu/plans || python3 gpu/cases.py
tar -czf "$out/dcp-source.tar.gz" --exclude=__pycache__ --exclude=node_modules \
  gpu grammar/dcp_grammar dcp_dsl/dcp_dsl planner/dcp_planner runtime/dcp_runtime \
  runtime/benchmarks/bench_kernels.py pyproject.toml
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
python3 -m pip download -q --only-binary=:all: -c constraints.txt -d "$wheels/wheels" click lark lazy_loader rich
tar -czf "$out/dcp-wheels.tar.gz" -C "$wheels" wheels
for file in "$out"/dcp-*.tar.gz; do
  size=$(wc -c <"$file")
  test "$size" -le 62914560 || { echo "$file has $size bytes, more than 60 MiB" >&2; exit 1; }
  echo "$file: $size bytes"
done
