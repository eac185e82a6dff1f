#!/bin/sh
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
#
#     install.sh [DIRECTORY]
#
# Puts colibri @version@ where `colibri-deploy push` would put it, by default into ~/colibri: the
# program is DIRECTORY/current/colibri then. The program is verified and tries itself first; the
# release before is kept, with its model, and a later push or rollback knows both.
set -eu

sha256=@sha256@
cksum='@cksum@'
here=$(cd -- "$(dirname -- "$0")" && pwd)
root=${1:-$HOME/colibri}
case $root in
/*) ;;
*) root=$PWD/$root ;;
esac
nonce=install$$

fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

# board VERB ARGUMENT...: what a verb of board.sh answers, without the marks in front.
board() {
    # shellcheck disable=SC2034 # board.sh reads $mark
    if answer=$(set +eu && mark='' && . "$here/share/colibri/board.sh" 2>&1); then
        printf '%s\n' "$answer" | sed 1,4d
    else
        fail "$1: $(printf '%s\n' "$answer" | sed 1,4d)"
    fi
}

# manifest [NAME SHA256]...: what board.sh writes for a release of these; its hash is the release's id.
manifest() {
    while [ $# -gt 0 ]; do
        printf '%s  %s\n' "$2" "$1"
        shift 2
    done
}

# run ARGUMENT...: the program; a machine that cannot run it itself names what can.
run() {
    # shellcheck disable=SC2086
    ${COLIBRI_RUNNER:-} "$here/bin/colibri" "$@"
}

[ "$(uname -m)" = @machine@ ] || [ -n "${COLIBRI_RUNNER:-}" ] ||
    fail "this is colibri for @machine@, and the machine says $(uname -m)"
run --selftest >/dev/null ||
    fail "the program does not work here: try bin/colibri --selftest"

case $(board lock "$nonce" "install.sh" "") in
owned) ;;
*) fail "somebody else deploys to $root" ;;
esac
trap 'rm -f -- "$root/lock/$nonce.0"; rmdir -- "$root/lock"' EXIT

[ -f "$root/store/$sha256" ] || board receive "$nonce" "$sha256" 0 <"$here/bin/colibri"
[ "$(board seal "$nonce" "$sha256" '' "$cksum" </dev/null)" = sound ] ||
    fail "bin/colibri is damaged: unpack the archive again"

# The new release has the program, and all other files of the current one.
set -- colibri "$sha256"
if [ -f "$root/current/manifest" ]; then
    while read -r sum name; do
        [ "$name" = colibri ] || set -- "$@" "$name" "$sum"
    done <"$root/current/manifest"
fi
id=$(manifest "$@" | run --sha256 /dev/stdin)
id=$(printf '%.16s' "$id")
board release "$nonce" "$id" "$sha256" "$@"
echo "release $id is current: $root/current/colibri"
