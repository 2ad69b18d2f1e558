#!/usr/bin/env bash
# Makes a Debian without cargo in FOLDER, once, for the test of the wheels: `root.sh FOLDER`. It needs root and Debian's packages.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin

folder=$1
suite=bookworm
stamp=$folder/.complete

[[ ! -f $stamp ]] || exit 0
fail() {
	printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
	exit 4
}
[[ $(id -u) == 0 ]] || fail "$(id -un) is not root, as debootstrap must be" "the test of the wheels runs in a virtual environment only"
if ! command -v debootstrap > /dev/null; then
	command -v apt-get > /dev/null || fail "debootstrap was not found, and neither was apt-get" "install debootstrap"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q
	apt-get install -qy --no-install-recommends debootstrap debian-archive-keyring
fi
rm -rf "$folder.part"
mkdir -p "$(dirname "$folder")"
# libgomp1 and libstdc++6 are what a torch expects of a system.
debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,libgomp1,libstdc++6 "$suite" "$folder.part"
rm -rf "$folder" "$folder.part/var/cache/apt/archives/"*.deb
mv "$folder.part" "$folder"
touch "$stamp"
