# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
#
# How scripts that look at a board begin, for any POSIX shell (BusyBox ash, dash, bash).
# colibri_deploy/asking.py sets $mark and $root in front of this text, and the script's own variables,
# and lets the board's /bin/sh read all of it from standard input: no command here may read that.
# Answers are lines `key value` on standard output; what a board does not say has no line.
#
# COLIBRI_SYSROOT, in the environment of an emulated board, is a directory whose proc/, sys/ and
# etc/ stand for those of the board. Without it a board that runs programs through COLIBRI_RUNNER
# says little: what lies in /proc is the emulating machine's.
# shellcheck disable=SC2034,SC2154 # variables are set in front of this text, and used after it

LC_ALL=C
export LC_ALL
exec 2>/dev/null # a file or a tool that is missing is an answer
top=${COLIBRI_SYSROOT:-${COLIBRI_RUNNER:+/dev/null}}
proc=$top/proc

# What the shell's startup files print comes before this line, and is dropped.
printf '\n%s\n' "$mark"

# tell KEY VALUE: one answer, unless the value is empty.
tell() {
    [ -z "$2" ] || printf '%s %s\n' "$1" "$2"
}

# each KEY: one answer for each line of standard input.
each() {
    while IFS= read -r line; do
        tell "$1" "$line"
    done
}

# kib FIELD: a size of /proc/meminfo.
kib() {
    sed -n "s/^$1: *\([0-9]*\) kB.*/\1/p" "$proc/meminfo"
}

# The work directory, or what there is of the way to it.
case $root in
/*) ;;
*) root=$HOME/${root#"~/"} ;;
esac
until [ -d "$root/" ]; do
    root=${root%/*}
done
