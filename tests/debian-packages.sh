#!/bin/sh
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
#
# The Debian packages that `make bench`, `make demo` and `make test` need beyond python3-venv, make and
# git; this is the one list. As root it installs what is missing, otherwise it says how.
#
#     debian-packages.sh bench|demo|test
set -eu

case $1 in
bench) packages="g++" ;; # llama.cpp is built from its source
demo) packages="qemu-user-static" ;; # the demonstration can do without, and says so
test)
    packages="binutils binutils-multiarch busybox-static clang dropbear-bin groff-base"
    packages="$packages libclang-rt-dev libnss-wrapper llvm minisign openssh-server qemu-system-arm"
    packages="$packages qemu-system-misc qemu-system-x86 qemu-user-static"
    ;;
*) echo "usage: $0 bench|demo|test" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
    echo "not a Debian system: this needs the programs of $packages" >&2
    exit 0
fi

missing=""
for package in $packages; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || :)
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "Debian packages are missing; run: sudo apt-get install$missing" >&2
    [ "$1" = demo ] || exit 1
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086 # one word a package
apt-get install -q -y --no-install-recommends $missing
