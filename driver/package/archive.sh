#!/usr/bin/env bash
# archive.sh OUT.tar FILE...: packs the files of //driver/package:archive, which Bazel names.
#
#   lockstep/bin/lockstep    a shell script that finds libtorch and starts the program
#   lockstep/lib/            the program, libspng, Oniguruma, and the files that it reads, at their places in the workspace
#   lockstep/tools/to_wandb  sends a run's numbers on
#   lockstep/scripts/        the training scripts; launch/ has files for clusters
#   lockstep/README.md, docs/    the documentation, on which scripts/pretrain.lua trains
#   lockstep/requirements.txt    the wheels of libtorch; requirements-parquet.txt has the one that reads Parquet
#
# Built with another libtorch than the pinned one, requirements.txt names that one, without hashes.
set -euo pipefail
out=$1
shift
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
to=$staging/lockstep
mkdir -p "$to/lib"
# for_all_pythons FILE: prints the requirements of a file with the hashes of other_pythons.txt.
for_all_pythons() {
  awk 'NR == FNR { if (sub(/ /, SUBSEP)) { split($0, parts, SUBSEP); more[parts[1]] = " " parts[2] } next } { print $0 more[$1] }' \
    third_party/other_pythons.txt "$1"
}
for file in "$@"; do
  name=${file#bazel-out/*/bin/}
  case $name in
    MODULE.bazel) version=$(sed -n 's/^    version = "\(.*\)",$/\1/p' "$file") ;;
    */libtorch/version) torch=$(<"$file") ;;
    */libtorch.bzl)
      oldest=$(sed -n 's/^OLDEST = "\(.*\)"$/\1/p' "$file")
      newest=$(sed -n 's/^NEWEST = "\(.*\)"$/\1/p' "$file")
      ;;
    driver/lockstep) strip -o "$to/lib/lockstep" "$file" ;;
    driver/keep/lockstep_keep) install -D -m 755 -s "$file" "$to/lib/$name" ;;
    */libspng.so.0 | */libonig.so.5) install -D -m 644 "$file" "$to/lib/${file##*/}" ;;
    third_party/other_pythons.txt) ;;
    third_party/libarrow/requirements.txt) for_all_pythons "$file" >"$to/requirements-parquet.txt" ;;
    */requirements.txt) for_all_pythons "$file" >"$to/requirements.txt" ;;
    driver/package/*.txt) install -D -m 644 "$file" "$to/lib/${name##*/}" ;;
    */lockstep.sh) install -D -m 755 "$file" "$to/bin/lockstep" ;;
    scripts/launch/*.sh | tools/*) install -D -m 755 "$file" "$to/$name" ;;
    LICENSE | README.md | docs/* | scripts/*) install -D -m 644 "$file" "$to/$name" ;;
    *) install -D -m 644 "$file" "$to/lib/$name" ;;
  esac
done
sed -i "s/@VERSION@/$version/; s/@TORCH@/$torch/; s/@OLDEST@/$oldest/; s/@NEWEST@/$newest/" "$to/bin/lockstep"
grep -q "^torch==$torch " "$to/requirements.txt" || echo "torch==$torch" >"$to/requirements.txt"
# The same files give the same archive.
tar --create --file="$out" --directory="$staging" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner lockstep
