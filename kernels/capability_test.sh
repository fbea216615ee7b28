#!/usr/bin/env bash
# capability_test.sh (CAPABILITY ARCHIVE)...: code that is compiled for an instruction set must not be shared with the
# rest of the program. The linker keeps one copy of each inline function, perhaps the one with AVX-512, and a machine
# without it would stop there. So each symbol that may be shared must have the capability's name in it.
set -euo pipefail

failed=0
while [[ $# -gt 0 ]]; do
  symbols=$(nm -C "$2")
  [[ $symbols =~ $1::k(RowKernels|GenerationKernels|CastLoops|FlashLoops|FewBitsKernels|LossKernels) ]] || {
    echo "$2 defines none of $1::kRowKernels, $1::kGenerationKernels, $1::kCastLoops, $1::kFlashLoops," \
      "$1::kFewBitsKernels and $1::kLossKernels" >&2
    failed=1
  }
  if grep -E '^[0-9a-f]+ [WVu] ' <<<"$symbols" | grep -v "$1"; then
    echo "$2: the linker may use these symbols on machines without $1; what is compiled for it must not need them" >&2
    failed=1
  fi
  shift 2
done
exit "$failed"
