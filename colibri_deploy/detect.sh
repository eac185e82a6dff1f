# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
#
# What a board is and has, for any POSIX shell (BusyBox ash, dash, bash). Writes nothing there.
# colibri_deploy/detect.py sets $mark, $root and $tools in front of this text, and lets the board's
# /bin/sh read it from standard input: no command here may read that. Answers are lines `key value`
# on standard output; what a board does not say has no line.
#
# COLIBRI_SYSROOT, in the environment of an emulated board, is a directory whose proc/, sys/ and
# etc/ stand for those of the board. Without it a board that runs programs through COLIBRI_RUNNER
# says little: what lies in /proc is the emulating machine's.
# shellcheck disable=SC2154 # $mark, $root and $tools are set in front of this text

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

# cpuinfo FIELD: its values, one line for each CPU.
cpuinfo() {
    sed -n "s/^$1[[:space:]]*:[[:space:]]*//p" "$proc/cpuinfo"
}

# kib FIELD: a size of /proc/meminfo.
kib() {
    sed -n "s/^$1: *\([0-9]*\) kB.*/\1/p" "$proc/meminfo"
}

tell machine "$(uname -m)"
tell kernel "$(cat "$proc/sys/kernel/osrelease")"
tell system "$(sed -n 's/^PRETTY_NAME=//p' "$top/etc/os-release")"
tell model "$(tr -d '\000' <"$proc/device-tree/model" || cat "$top/sys/class/dmi/id/product_name")"
tr '\000' '\n' <"$proc/device-tree/compatible" | each compatible

# `processor` numbers the CPUs; x86 and Arm tell all features of each, RISC-V its isa string.
tell cpus "$(cpuinfo processor | grep -c .)"
tell cpu_name "$(cpuinfo 'model name' | sed q)"
tell cpu_name "$(cpuinfo uarch | sed q)"
cpuinfo 'CPU part' | each cpu_part
tell features "$(cpuinfo flags | sed q)"
tell features "$(cpuinfo Features | sed q)"
cpuinfo isa | each isa

tell ram_kib "$(kib MemTotal)"
tell swap_kib "$(kib SwapTotal)"
tell page_bytes "$(getconf PAGESIZE)"
tell page_kib "$(sed -n 's/^KernelPageSize: *\([0-9]*\) kB.*/\1/p' "$proc/self/smaps" | sed q)"

case $root in
/*) ;;
*) root=$HOME/${root#"~/"} ;;
esac
until [ -d "$root/" ]; do
    root=${root%/*}
done
df -Pk -- "$root/" | {
    read -r _
    read -r _ _ _ free _ && tell free_kib "$free"
}

for tool in $tools; do
    command -v "$tool" >/dev/null && tell tool "$tool"
done
for folder in openssh/ ssh/ ''; do
    for lib in /usr/lib /usr/libexec; do
        [ ! -x "$lib/${folder}sftp-server" ] || tell tool sftp-server
    done
done

echo end
