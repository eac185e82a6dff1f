# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
#
# The board's side of colibri-deploy, for any POSIX shell (BusyBox ash, dash, bash).
# colibri_deploy/board_shell.py sets $mark and $root and the positional parameters (a verb and its
# arguments), puts this text behind, and lets the board's /bin/sh evaluate it. What is left on
# standard input is the content of a file. Below $root lie
#
#   store/<sha256>                 a file, whole and verified
#   store/.<sha256>.partial        one that is being sent
#   releases/<id>/<name>           symbolic links into the store, and `manifest`
#   current                        a symbolic link to a release
#
# Answers are lines `key value...` on standard output. A failure is a line on standard error and a
# status other than 0.

LC_ALL=C
export LC_ALL
umask 022

# What the shell's startup files print comes before this line, and is dropped.
# shellcheck disable=SC2154 # $mark is set in front of this text
printf '\n%s\n' "$mark"
printf '\n%s\n' "$mark" >&2

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

case $root in
/*) ;;
*) root=$HOME/${root#"~/"} ;;
esac
store=$root/store
releases=$root/releases

# The size of a file in bytes; `wc -c` reads all of it on some boards.
size() {
    # shellcheck disable=SC2012 # of one file, for the fifth field that POSIX gives it
    ls -lnd -- "$1" | { read -r _ _ _ _ bytes _ && printf '%s\n' "$bytes"; }
}

# Returns when the content of the files is on the disk. An old `sync` knows no names.
durable() {
    sync -- "$@" 2>/dev/null || sync
}

# Starts the engine. A board that cannot run it itself names what can; that is split into words.
engine() {
    # shellcheck disable=SC2086
    ${COLIBRI_RUNNER:-} "$@"
}

# sha256 FILE ENGINE: the engine is that of a release, verified before.
sha256() {
    sum=$(engine "$2" --sha256 "$1") || return 1
    printf '%s\n' "${sum%% *}"
}

# engine_is_sound FILE SHA256 CKSUM: the first file has no verified engine to be read by.
engine_is_sound() {
    if command -v sha256sum >/dev/null; then
        sum=$(sha256sum <"$1") && [ "${sum%% *}" = "$2" ]
    elif [ "$(cksum <"$1")" = "$3" ]; then
        [ "$(sha256 "$1" "$1")" = "$2" ]
    else
        return 1
    fi
}

# probe: what the board is and has. Writes nothing.
probe() {
    printf 'machine %s\n' "$(uname -m)"
    printf 'root %s\n' "$root"
    near=$root
    until [ -d "$near/" ]; do
        near=${near%/*}
    done
    df -Pk -- "$near/" | {
        read -r _
        read -r _ _ _ free _ && printf 'free_kib %s\n' "$free"
    }
    [ ! -h "$root/current" ] || printf 'current %s\n' "$(readlink "$root/current")"
    [ ! -f "$root/current/manifest" ] || sed 's/^/file /' "$root/current/manifest"
}

# stored SHA256...: which of these files are here, whole or in part. Writes nothing.
stored() {
    for sha; do
        [ ! -f "$store/$sha" ] || printf 'whole %s %s\n' "$sha" "$(size "$store/$sha")"
        partial=$store/.$sha.partial
        [ ! -f "$partial" ] || printf 'partial %s %s\n' "$sha" "$(size "$partial")"
    done
}

# receive SHA256 OFFSET: appends standard input to what is here already of a file.
receive() {
    mkdir -p "$store" "$releases" || exit 1
    partial=$store/.$1.partial
    [ "$2" != 0 ] || : >"$partial" || exit 1
    here=$(size "$partial")
    [ "$here" = "$2" ] || fail "$partial has $here bytes now, not $2: does somebody else push, too?"
    cat >>"$partial"
}

# seal SHA256 ENGINE: verifies a file with the engine of that SHA-256, and puts it in the store.
# seal SHA256 '' CKSUM: the same for an engine itself.
# Answers `sound`, or `damaged` for a file that is not what its name says; that is removed.
seal() {
    file=$store/$1
    [ -f "$file" ] || file=$store/.$1.partial
    if [ -z "$2" ]; then
        chmod 755 "$file" || exit 1
        if engine_is_sound "$file" "$1" "$3"; then verdict=sound; else verdict=damaged; fi
    else
        sum=$(sha256 "$file" "$store/$2") || fail "the engine cannot read $file"
        if [ "$sum" = "$1" ]; then verdict=sound; else verdict=damaged; fi
    fi
    if [ $verdict = damaged ]; then
        rm -f -- "$file" || exit 1
    elif [ "$file" != "$store/$1" ]; then
        durable "$file"
        mv -- "$file" "$store/$1" || exit 1
        durable "$store"
    fi
    echo $verdict
}

# mend ENGINE MADE NEW: makes the release in MADE what the one in NEW is, and removes NEW.
# MADE may be current: each name in it is replaced by one rename, so that none that is good is ever
# missing. Answers `mended NAME` for each that was damaged.
mend() {
    for path in "$3"/*; do
        name=${path##*/}
        old=$2/$name
        if [ ! -h "$path" ]; then # the manifest
            if [ -f "$old" ] && [ ! -h "$old" ] && cmp -s -- "$path" "$old"; then continue; fi
            durable "$path"
            [ ! -d "$old" ] || rm -rf -- "$old" || exit 1 # mv would move into it
            mv -f -- "$path" "$old" || exit 1
        else
            target=$(readlink "$path")
            if [ -h "$old" ]; then
                [ "$(readlink "$old")" != "$target" ] || continue
            else
                rm -rf -- "$old" || exit 1 # what is no link, --switch leaves alone
            fi
            engine "$1" --switch "$old" "$target" || exit 1
        fi
        printf 'mended %s\n' "$name"
    done
    durable "$2/manifest" "$2"
    rm -rf -- "$3"
}

# release ID ENGINE [NAME SHA256]...: makes a release of files in the store the current one.
# One of that name that is there already is mended, see above.
release() {
    made=$releases/$1
    new=$releases/.$1.partial
    id=$1
    run=$store/$2
    shift 2
    rm -rf -- "$new" && mkdir -p -- "$new" || exit 1
    while [ $# -gt 0 ]; do
        ln -s -- "../../store/$2" "$new/$1" || exit 1
        # Through cat, which says why it fails; to dash's printf all is an "I/O error".
        printf '%s  %s\n' "$2" "$1" | cat >>"$new/manifest" || exit 1
        shift 2
    done
    if [ -d "$made" ] && [ ! -h "$made" ]; then
        mend "$run" "$made" "$new" || exit 1
    else
        durable "$new/manifest" "$new"
        rm -rf -- "$made" && mv -- "$new" "$made" || exit 1
    fi
    durable "$releases"
    engine "$run" --switch "$root/current" "releases/$id"
}

# run ARGUMENT...: the engine of the current release.
run() {
    engine "$root/current/colibri" "$@"
}

"$@"
