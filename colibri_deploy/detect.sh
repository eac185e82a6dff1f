# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
#
# What a board is and has. Goes after ask.sh, which see; $tools are those to look for. Writes nothing
# there.
# shellcheck disable=SC2154 # $proc, $root, $tools and $top are set in front of this text

# cpuinfo FIELD: its values, one line for each CPU.
cpuinfo() {
    sed -n "s/^$1[[:space:]]*:[[:space:]]*//p" "$proc/cpuinfo"
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
