#!/bin/sh
# Pack the source, the plans and small wheels for a machine with a GPU and without a network:
#   sh gpu/pack.sh [DIR]      writes DIR/dcp-source.tar.gz and DIR/dcp-wheels.tar.gz, each below 60 MiB
#   sh gpu/pack.sh DIR flash4 writes DIR/dcp-flash4.tar.aa, .ab and .ac as well: wheels of flash-attn-4,
#                             and compiled kernels if `gpu/flash4_cache.py gpu/flash4` made them
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
tar -czf "$out/dcp-source.tar.gz" --exclude=__pycache__ --exclude=node_modules --exclude=gpu/flash4 \
  gpu grammar/dcp_grammar dcp_dsl/dcp_dsl planner/dcp_planner runtime/dcp_runtime \
  runtime/benchmarks/bench_kernels.py pyproject.toml
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
python3 -m pip download -q --only-binary=:all: -c constraints.txt -d "$wheels/wheels" click lark lazy_loader rich
tar -czf "$out/dcp-wheels.tar.gz" -C "$wheels" wheels
if [ "${2:-}" = flash4 ]; then
  # Of the two libraries of nvidia-cutlass-dsl, 92 MB each, only that of CUDA 13: hence --no-deps.
  python3 -m pip download -q --only-binary=:all: --no-deps -d "$wheels/flash4" flash-attn-4==4.0.0b36 \
    nvidia-cutlass-dsl==4.8.1 nvidia-cutlass-dsl-libs-base==4.8.1 nvidia-cutlass-dsl-libs-core==4.8.1 \
    nvidia-cutlass-dsl-libs-cu13==4.8.1 quack-kernels==0.6.5 apache-tvm-ffi==0.1.15.post2 \
    torch-c-dlpack-ext==0.1.5 einops protobuf
  test ! -d gpu/flash4 || cp -R gpu/flash4 "$wheels/flash4/cache"
  rm -f "$out"/dcp-flash4.tar.*
  tar -cf - -C "$wheels" flash4 | split -b 36m - "$out/dcp-flash4.tar."
fi
for file in "$out"/dcp-*.tar.*; do
  size=$(wc -c <"$file")
  test "$size" -le 62914560 || { echo "$file has $size bytes, more than 60 MiB" >&2; exit 1; }
  echo "$file: $size bytes"
done
