#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The archive works wherever it is unpacked: build it, unpack it into a folder with a space in its name, and do there what
# a user does first, with an empty environment and no build tree to fall back on.
#
# usage: package_test.sh BUILD_DIR

set -euo pipefail
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  printf 'package_test: %s\n' "$*" >&2
  exit 1
}
# The exit status of a command whose output goes to $work/out.
status_of() {
  local status=0
  env -i PATH=/usr/bin:/bin HOME="$work" timeout -k 5 60 "$@" >"$work/out" 2>&1 </dev/null || status=$?
  printf '%s\n' "$status"
}
expect() { # STATUS TEXT COMMAND...
  local wanted=$1 text=$2 got
  shift 2
  got=$(status_of "$@")
  [[ $got == "$wanted" ]] || fail "$* ended with status $got, not $wanted: $(cat "$work/out")"
  grep -q -- "$text" "$work/out" || fail "$* did not say \"$text\": $(cat "$work/out")"
}

cpack --config "$build/CPackConfig.cmake" -B "$work/package" >"$work/out" 2>&1 || fail "cpack: $(cat "$work/out")"
archives=("$work"/package/lockstep-*.tar.gz)
[[ ${#archives[@]} == 1 && -e ${archives[0]} ]] || fail "one archive expected, got: ${archives[*]}"
archive=${archives[0]}
mkdir "$work/a folder"
tar -xzf "$archive" -C "$work/a folder"
home="$work/a folder/$(basename "$archive" .tar.gz)"

for file in bin/lockstep bin/lockstep-demo lib/liblockstep.so include/lockstep.h lib/lockstep/host/libcuda.so.1 \
    lib/lockstep/host/libcudart.so.13 lib/lockstep/host/libnccl.so.2 share/lockstep/demo/keepers.txt \
    bin/lockstep-train share/lockstep/train/lockstep.txt \
    share/doc/lockstep/README.md share/doc/lockstep/LICENSE share/doc/lockstep/docs/design.md; do
  [[ -e $home/$file ]] || fail "$file is not in $(basename "$archive")"
done

# No program or library of it may look for anything in the tree it was built in.
while IFS= read -r file; do
  path=$(readelf -d "$file" 2>/dev/null | grep -E 'RPATH|RUNPATH' || true)
  [[ $path != *"$build"* ]] || fail "$file looks into the build tree: $path"
done < <(find "$home/bin" "$home/lib" -type f)

printf '#include <lockstep.h>\nint main(void) { lockstep_step(1); return 0; }\n' >"$work/mark.c"
cc -Wall -Werror -I"$home/include" "$work/mark.c" -o "$work/mark"
"$work/mark"

traces="$work/traces of it"
expect 1 "rank 2" "$home/bin/lockstep" run --host --dir "$traces/hang" --hang-seconds 2 --kill-on-hang -- "$home/bin/lockstep-demo"
expect 1 "wait_for_epoch_end" "$home/bin/lockstep" diagnose "$traces/hang"
expect 0 "epoch over" "$home/bin/lockstep" run --host --dir "$traces/healthy" -- "$home/bin/lockstep-demo" --drop-last
expect 0 "healthy" "$home/bin/lockstep" diagnose "$traces/healthy"
expect 0 "step 2  loss" "$home/bin/lockstep-train" --dp 2 --zero 1 --layers 1 --width 16 --heads 2 --seq 16 --steps 2
printf 'package_test: %s works\n' "$(basename "$archive")"
