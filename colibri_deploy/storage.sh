# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
#
# How fast a board's storage is: writes $mib MiB where the work directory is, reads them without the
# page cache, and removes them. Goes after ask.sh, which see.
# shellcheck disable=SC2154 # $mib and $root are set in front of this text

probe=$root/.colibri-probe.$$
trap 'rm -f -- "$probe"' EXIT
trap 'exit 1' HUP INT TERM

# uptime: the time in seconds, to hundredths, which date(1) need not have.
uptime() {
    read -r now _ </proc/uptime && printf '%s\n' "$now"
}

start=$(uptime)
dd if=/dev/zero "of=$probe" bs=1048576 "count=$mib" conv=fsync && tell written "$start $(uptime)"
start=$(uptime)
dd "if=$probe" of=/dev/null bs=1048576 iflag=direct && tell read "$start $(uptime)"
rm -f -- "$probe"
