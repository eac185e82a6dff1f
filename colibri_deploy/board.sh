# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
#
# The board's side of colibri-deploy, for any POSIX shell (BusyBox ash, dash, bash).
# colibri_deploy/board_shell.py sets $mark and $root and the positional parameters (a verb and its
# arguments), puts this text behind, and lets the board's /bin/sh evaluate it. What is left on
# standard input is the content of a file. Below $root lie
#
#   store/<sha256>                 a file, whole and verified
#   store/<sha256>.chunks          the hashes of its chunks, see colibri_deploy/chunks.py
#   store/.<sha256>.partial        one that is being sent
#   store/.<sha256>.ranges.partial what of it is there, if it is sent over several connections
#   releases/<id>/<name>           symbolic links into the store, and `manifest`
#   current                        a symbolic link to a release
#   history                        ids of the releases that were current before, the last one first
#   trusted_key                    the key that signs releases, since the first one that was pushed
#   lock/<nonce>.<beat>            while somebody deploys
#
# A verb that writes takes as its first argument the nonce of the deploy that owns the lock. Answers
# are lines `key value...` on standard output. A failure is a line on standard error and a status
# other than 0.
#
# A verb whose connection is cut may go on for a while, beside the deploy that comes next: so it
# writes into a file that is being sent only what belongs there.

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
lock=$root/lock
history=$root/history
trusted=$root/trusted_key
kept_releases=2 # besides the current one

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

# engine_is_sound FILE SHA256 CKSUM: the first file has no verified engine to be read by. CKSUM has
# its size, too; a board without cksum has to have sha256sum.
engine_is_sound() {
    if command -v cksum >/dev/null; then
        [ "$(cksum <"$1")" = "$3" ] || return 1
    elif ! command -v sha256sum >/dev/null; then
        return 1
    fi
    if command -v sha256sum >/dev/null; then
        sum=$(sha256sum <"$1") && [ "${sum%% *}" = "$2" ]
    else
        [ "$(sha256 "$1" "$1")" = "$2" ]
    fi
}

# The lock is a directory with one file in it: its name is the nonce of the deploy that owns the
# lock, and a number, which the owner counts up as long as it lives; its content says since when (by
# the board's clock), and who that is. Only one of those who rename a file succeeds. So a lock is
# taken over from a dead owner by renaming the file that was seen to stand still; that fails if the
# owner lives after all, or if somebody else was faster. No clock has to be right for it.

# lock NONCE OWNER SEEN: takes the lock, from the deploy whose file is SEEN if that is not empty; `-`
# stands for an owner that died before it made its file.
# Answers `owned`, or `held FILE SECONDS OWNER` of the deploy that has it, `?` for what is not known.
lock() {
    mkdir -p -- "$root" || exit 1
    now=$(date +%s)
    if take "$1" "$3"; then
        printf '%s %s\n' "$now" "$2" | cat >"$lock/$1.0" || {
            rm -f -- "$lock/$1.0"
            rmdir -- "$lock"
            exit 1
        }
        echo owned
        return
    fi
    [ -d "$lock" ] || exit 1 # it cannot be made; mkdir has said why
    for file in "$lock"/*; do
        since='' owner='?'
        [ -f "$file" ] || file=-
        [ "$file" = - ] || { read -r since owner <"$file"; } 2>/dev/null
        case $since in
        '' | *[!0-9]*) age='?' ;;
        *) age=$((now - since)) ;;
        esac
        printf 'held %s %s %s\n' "${file##*/}" "$age" "$owner"
        return
    done
}

# take NONCE SEEN: the atomic part of `lock`.
take() {
    case $2 in
    '') ;;
    -) rmdir -- "$lock" 2>/dev/null ;;
    *) ! mv -- "$lock/$2" "$lock/$1.0" 2>/dev/null || return 0 ;;
    esac
    mkdir -- "$lock" 2>/dev/null || { [ ! -d "$lock" ] && mkdir -- "$lock"; }
}

# hold NONCE: counts the lock's number up for each line that comes, and gives it up at the end.
hold() {
    beat=0
    while read -r _; do
        mv -- "$lock/$1.$beat" "$lock/$1.$((beat + 1))" || exit 1
        beat=$((beat + 1))
    done
    rm -- "$lock/$1.$beat" && rmdir -- "$lock"
}

# owned NONCE: ends the verb unless the lock is that deploy's.
owned() {
    # Twice, because the file may be renamed in between.
    is_file "$lock/$1".* || is_file "$lock/$1".* ||
        fail "another deploy took the lock, because this one gave no sign of life for too long"
}

is_file() {
    [ -f "$1" ]
}

# probe: what the board is and has. Writes nothing.
probe() {
    printf 'machine %s\n' "$(uname -m)"
    printf 'root %s\n' "$root"
    printf 'cpus %s\n' "$(grep -c '^processor' /proc/cpuinfo)"
    near=$root
    until [ -d "$near/" ]; do
        near=${near%/*}
    done
    df -Pk -- "$near/" | {
        read -r _
        read -r _ _ _ free _ && printf 'free_kib %s\n' "$free"
    }
    [ ! -h "$root/current" ] || printf 'current %s\n' "$(current)"
    [ ! -f "$root/current/manifest" ] || sed 's/^/file /' "$root/current/manifest"
    previous | sed 's/^/previous /'
    for path in "$store"/*.chunks; do
        sha=${path##*/}
        [ ! -f "$path" ] || printf 'chunked %s\n' "${sha%.chunks}"
    done
}

# The id of the current release.
current() {
    id=$(readlink "$root/current") && printf '%s\n' "${id##*/}"
}

# The ids of the releases that can be gone back to, the last one first.
previous() {
    [ -f "$history" ] || return 0
    now=$(current)
    while read -r id; do
        [ "$id" = "$now" ] || [ ! -d "$releases/$id" ] || printf '%s\n' "$id"
    done <"$history" | head -n "$kept_releases"
}

# look SHA256...: what `probe` says, and which of these files are here, whole or in part.
look() {
    probe
    for sha; do
        [ ! -f "$store/$sha" ] || printf 'whole %s %s\n' "$sha" "$(size "$store/$sha")"
        partial=$store/.$sha.partial
        [ -f "$partial" ] || continue
        printf 'partial %s %s\n' "$sha" "$(size "$partial")"
        ranges=$store/.$sha.ranges.partial
        [ ! -f "$ranges" ] || sed "s/^/range $sha /" "$ranges"
    done
}

# receive NONCE SHA256 OFFSET: puts standard input where it belongs in a file of which so many bytes
# are here already.
receive() {
    owned "$1"
    shift
    mkdir -p "$store" "$releases" || exit 1
    partial=$store/.$1.partial
    [ "$2" != 0 ] || { rm -f -- "$partial" "$store/.$1.ranges.partial" && : >"$partial"; } || exit 1
    here=$(size "$partial")
    [ "$here" -ge "$2" ] || fail "$partial has $here bytes now, not $2: does somebody else push, too?"
    { dd bs=1 seek="$2" count=0 conv=notrunc 2>/dev/null && cat; } 1<>"$partial"
}

# spread NONCE SHA256 BYTES: from now on the file is received in ranges of blocks of so many bytes,
# and the list of them says what is here. Of what one connection has sent the whole blocks count.
spread() {
    owned "$1"
    mkdir -p "$store" "$releases" || exit 1
    partial=$store/.$2.partial
    ranges=$store/.$2.ranges.partial
    if [ ! -f "$partial" ] || [ ! -s "$ranges" ]; then
        [ -f "$partial" ] || : >"$partial" || exit 1
        printf '0 %s\n' $(($(size "$partial") / $3)) | cat >"$ranges" || exit 1
    fi
}

# receive_range NONCE SHA256 FIRST BYTES: puts standard input into the file from that block on, and
# notes how many whole blocks that were, also if the line is cut.
receive_range() {
    owned "$1"
    partial=$store/.$2.partial
    said=$(dd ibs=32768 obs="$4" seek="$3" conv=notrunc of="$partial" 2>&1)
    status=$?
    blocks=$(printf '%s\n' "$said" | sed -n 's/^\([0-9]*\)+.* records out.*/\1/p')
    printf '%s %s\n' "$3" "${blocks:-0}" | cat >>"$store/.$2.ranges.partial" || exit 1
    [ $status = 0 ] || fail "$(printf '%s\n' "$said" | sed -n 1p)" # then follows what was copied
}

# trusts: the key that signs releases, `key WORD...`, where one is trusted. Writes nothing.
trusts() {
    [ ! -f "$trusted" ] || sed 's/^/key /' "$trusted"
}

# prove NONCE ENGINE KEY SUMS SIGNATURE NAME LIST: whether the key that is trusted here has signed
# SUMS, which names LIST, which names the engine. Where no key is trusted yet, this one is from then
# on. Answers `host`, if nothing here can check that, otherwise `board`, or `refused WORD...`.
prove() {
    owned "$1"
    known=$(trusts)
    if [ -n "$known" ] && [ "$known" != "key $3" ]; then
        echo refused: another key is trusted
        return
    fi
    proof=$root/.proof.partial
    rm -rf -- "$proof" && mkdir -- "$proof" || exit 1
    printf %s "$4" | cat >"$proof/sums" || exit 1
    printf %s "$5" | cat >"$proof/signature" || exit 1
    printf %s "$7" | cat >"$proof/list" || exit 1
    verdict=$(proven "$3" "$6" "$store/$2") || exit 1
    case $verdict in
    board | host)
        if [ -z "$known" ]; then
            printf '%s\n' "$3" | cat >"$proof/key" || exit 1
            durable "$proof/key"
            mv -- "$proof/key" "$trusted" || exit 1
        fi
        ;;
    esac
    rm -rf -- "$proof"
    printf '%s\n' "$verdict"
}

# proven KEY NAME ENGINE: the answer of `prove`.
proven() {
    if ! command -v sha256sum >/dev/null; then # the engine itself is no judge of that
        echo host
        return
    fi
    case $1 in
    ssh-* | ecdsa-*)
        printf 'release %s\n' "$1" | cat >"$proof/signers" || exit 1
        said=$(ssh-keygen -Y verify -f "$proof/signers" -I release -n colibri-release \
            -s "$proof/signature" <"$proof/sums" 2>&1)
        ;;
    *) said=$(minisign -V -q -P "$1" -m "$proof/sums" -x "$proof/signature" 2>&1) ;;
    esac
    case $?,$said in
    0,*) ;;
    127,* | *'option -- Y'* | *'option: Y'*) # not there, or older than OpenSSH 8.1; with musl
        echo host
        return
        ;;
    *)
        echo refused: the signature is not good
        return
        ;;
    esac
    list=$(sha256sum <"$proof/list")
    engine=$(sha256sum <"$3")
    if grep -qxF -- "${list%% *}  $2" "$proof/sums" && grep -q "^${engine%% *}  " "$proof/list"; then
        echo board
    else
        echo refused: the engine is none of those that are signed
    fi
}

# chunks SHA256: the hashes of the chunks of a file. Writes nothing.
chunks() {
    cat -- "$store/$1.chunks"
}

# assemble NONCE SHA256 SENT BYTES: puts a file together from chunks of so many bytes. A line of
# standard input is the SHA-256 of the file that has them, the first one's index, and their number.
# SENT is a file that was received for this alone, and is removed.
assemble() {
    owned "$1"
    partial=$store/.$2.partial
    rm -f -- "$partial" "$store/.$2.ranges.partial" && : >"$partial" || exit 1
    while read -r sha first count; do
        owned "$1"
        source=$store/$sha
        [ "$sha" != "$3" ] || source=$store/.$3.partial
        said=$(dd bs="$4" skip="$first" count="$count" <"$source" 2>&1 >>"$partial") || {
            printf '%s\n' "$said" | sed -n 1p >&2 # then follows what it has copied
            exit 1
        }
    done
    rm -f -- "$store/.$3.partial"
}

# seal NONCE SHA256 ENGINE: verifies a file with the engine of that SHA-256, and puts it in the store.
# seal NONCE SHA256 '' CKSUM: the same for an engine itself.
# The hashes of the file's chunks are standard input, if the board lacks them.
# Answers `sound`, or `damaged` for a file that is not what its name says; that is removed.
seal() {
    owned "$1"
    shift
    list=$store/.$1.chunks.partial
    cat >"$list" || exit 1
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
    rm -f -- "$store/.$1.ranges.partial" || exit 1
    if [ $verdict = sound ] && [ -s "$list" ]; then
        mv -- "$list" "$store/$1.chunks" || exit 1
    else
        rm -f -- "$list" || exit 1
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

# switch_to ID ENGINE: makes a release that is whole the current one.
switch_to() {
    if now=$(current) && [ "$now" != "$1" ]; then
        # Before the switch: should it not take place, the first line is the current release's.
        { printf '%s\n' "$now" && previous; } | cat >"$root/.history.partial" || exit 1
        durable "$root/.history.partial"
        mv -- "$root/.history.partial" "$history" || exit 1
    fi
    engine "$2" --switch "$root/current" "releases/$1"
}

# release NONCE ID ENGINE [NAME SHA256]...: makes a release of files in the store the current one.
# One of that name that is there already is mended, see above.
release() {
    owned "$1"
    shift
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
    switch_to "$id" "$run"
}

# prune NONCE [SHA256]...: removes what neither the current release uses nor those that can be gone
# back to, but for the files that are named.
# Answers `pruned release ID` and `pruned file NAME BYTES`.
prune() {
    owned "$1"
    shift
    keep=" $(current) $(previous | tr '\n' ' ')"
    used=
    for sha; do
        used="$used ../../store/$sha "
    done
    for link in "$releases"/*/*; do
        id=${link%/*}
        case $keep in
        *" ${id##*/} "*) [ ! -h "$link" ] || used="$used $(readlink "$link") " ;;
        esac
    done
    for path in "$releases"/* "$releases"/.*.partial; do
        [ -e "$path" ] || [ -h "$path" ] || continue
        id=${path##*/}
        case $keep in
        *" $id "*) ;;
        *) rm -rf -- "$path" && printf 'pruned release %s\n' "$id" ;;
        esac || exit 1
    done
    for path in "$store"/* "$store"/.*.partial; do
        [ -f "$path" ] || continue
        name=${path##*/}
        case $used in
        *" ../../store/${name%.chunks} "*) ;;
        *) bytes=$(size "$path") && rm -f -- "$path" && printf 'pruned file %s %s\n' "$name" "$bytes" ;;
        esac || exit 1
    done
    rm -f -- "$root"/current.[0-9]* "$root/.history.partial"
}

# check ID: whether the files of a release are what its manifest says. Writes nothing.
# Answers `sound SHA256 NAME` or `damaged SHA256 NAME` for each.
check() {
    made=$releases/$1
    [ -f "$made/manifest" ] || fail "there is no release $1"
    while read -r sha name; do
        if [ "$name" = colibri ] && command -v sha256sum >/dev/null; then
            sum=$(sha256sum <"$made/$name")
        else
            sum=$(sha256 "$made/$name" "$made/colibri")
        fi
        if [ "${sum%% *}" = "$sha" ]; then verdict=sound; else verdict=damaged; fi
        printf '%s %s %s\n' $verdict "$sha" "$name"
    done <"$made/manifest" 2>/dev/null
}

# rollback NONCE ID: makes a release that `check` found sound the current one.
rollback() {
    owned "$1"
    switch_to "$2" "$releases/$2/colibri"
}

# drop NONCE ID: makes sure that a release, not the current one, is never gone back to. Its files
# stay until `prune`.
drop() {
    owned "$1"
    [ "$(current)" != "$2" ] || fail "release $2 is the current one"
    rm -rf -- "${releases:?}/$2"
}

# contents: what `undeploy` would remove, `kib NUMBER`, and what it would not, `foreign PATH`.
contents() {
    cd -- "$root/" 2>/dev/null || return 0
    du -sk . | sed 's/[^0-9].*//; s/^/kib /'
    find . | while read -r path; do
        is_ours "${path#./}" || printf 'foreign %s\n' "${path#./}"
    done
}

# is_ours PATH: whether a path below $root is one that the verbs above make.
is_ours() {
    case $1 in
    . | store | releases | history | .history.partial | lock) ;;
    trusted_key | .proof.partial) ;;
    .proof.partial/*/*) false ;;
    .proof.partial/*) ;;
    current | current.[0-9]*) [ -h "$1" ] ;;
    store/*/* | releases/*/*/* | lock/*/*) false ;;
    lock/*.*[0-9]) ;;
    store/*)
        name=${1#store/.}
        name=${name#store/}
        name=${name%.partial}
        name=${name%.chunks}
        name=${name%.ranges}
        case $name in
        *[!0-9a-f]*) false ;;
        *) [ ${#name} = 64 ] && [ -f "$1" ] ;;
        esac
        ;;
    releases/*/manifest) ;;
    releases/*/*) [ -h "$1" ] ;;
    releases/*) [ -d "$1" ] ;;
    *) false ;;
    esac
}

# undeploy NONCE: removes everything of ours, the lock and $root too, unless something else is there.
undeploy() {
    owned "$1"
    contents | grep '^foreign ' >&2 && fail "$root holds what no deploy has put there; nothing was removed"
    cd / || exit 1
    rm -f -- "$root/current" "$root"/current.[0-9]* &&
        rm -rf -- "$releases" "$store" "$history" "$root/.history.partial" "$trusted" \
            "$root/.proof.partial" "$lock" || exit 1
    # A mount point stays, and so does what was made in a directory where nobody else may write.
    rmdir -- "$root" 2>/dev/null || printf 'left %s\n' "$root"
}

# run ARGUMENT...: the engine of the current release.
run() {
    engine "$root/current/colibri" "$@"
}

# stream ARGUMENT...: the same, but it is ended when standard input ends.
stream() {
    exec 3<&0
    # Not through `engine`: a signal would reach its shell only.
    # shellcheck disable=SC2086
    ${COLIBRI_RUNNER:-} "$root/current/colibri" "$@" </dev/null 3<&- &
    job=$!
    { cat && kill "$job"; } <&3 >/dev/null 2>&1 &
    wait "$job"
    status=$?
    kill $! 2>/dev/null
    return $status
}

"$@"
