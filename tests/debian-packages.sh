#!/bin/sh
# The Debian packages that the tests need beyond python3-venv, make and git; this is the one list.
# As root it installs what is missing, otherwise it says how.
set -eu

packages="binutils qemu-user-static"

if ! command -v dpkg-query >/dev/null; then
    echo "not a Debian system: the tests need the programs of $packages" >&2
    exit 0
fi

missing=""
for package in $packages; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || :)
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "error: Debian packages are missing; run: sudo apt-get install$missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086 # one word a package
apt-get install -q -y --no-install-recommends $missing
