#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Every relative link of README.md and docs/ leads to a file, and every page of docs/ is reachable from docs/README.md.
#
# usage: links_test.sh SOURCE_DIR

set -euo pipefail
cd "$1"
status=0
links_of() { grep -oE '\]\([^)#]+' "$1" | sed 's/^](//' | grep -vE '^[a-z]+:' || true; }

for page in README.md docs/*.md; do
  while IFS= read -r link; do
    [[ -z $link || -e $(dirname "$page")/$link ]] || { printf '%s links to %s, which is not there\n' "$page" "$link"; status=1; }
  done < <(links_of "$page")
done
for page in docs/*; do
  name=$(basename "$page")
  [[ $name == README.md ]] || grep -q "($name)" docs/README.md || { printf 'docs/README.md does not mention %s\n' "$name"; status=1; }
done
exit "$status"
