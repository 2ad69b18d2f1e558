#!/bin/sh
# Installs ENN from its release archive: `sh install.sh ARCHIVE [PREFIX]`, into ~/.local if no PREFIX is given.
# The SHA-256 of the archive must be the one in ARCHIVE.sha256, or the one that ENN_SHA256 holds: nothing is unpacked before.
set -eu

fail() {
	printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
	exit 4
}

[ $# -ge 1 ] && [ $# -le 2 ] || { echo 'usage: sh install.sh ARCHIVE [PREFIX]' >&2; exit 2; }
archive=$1
prefix=${2:-${HOME:+$HOME/.local}}
[ -n "$prefix" ] || fail 'HOME is not set and no PREFIX is given' 'sh install.sh ARCHIVE PREFIX'
[ -f "$archive" ] || fail "$archive does not exist" 'give the path of enn-VERSION-x86_64-linux.tar.gz'
[ "$(uname -sm)" = 'Linux x86_64' ] || fail "this is $(uname -sm), expected Linux x86_64" 'build ENN from its source'

if [ -n "${ENN_SHA256:-}" ]; then
	expected=$ENN_SHA256
elif [ -f "$archive.sha256" ]; then
	expected=$(cut -d ' ' -f 1 "$archive.sha256")
else
	fail "$archive.sha256 does not exist and ENN_SHA256 is not set" 'get the digest from where the archive is from'
fi
found=$(sha256sum "$archive" | cut -d ' ' -f 1)
[ "$found" = "$expected" ] || fail "$archive has the SHA-256 $found, expected $expected" 'download it again; nothing was installed'

mkdir -p "$prefix"
part=$(mktemp -d "$prefix/.enn-install.XXXXXX")
trap 'rm -rf "$part"' EXIT
trap 'exit 130' INT TERM
tar -xzf "$archive" -C "$part" --strip-components 1 --no-same-owner
mkdir -p "$prefix/bin" "$prefix/lib"
# Each name changes in one rename: a program that runs keeps the file that it was started from.
for folder in enn enn_train; do
	[ ! -e "$prefix/lib/$folder" ] || mv "$prefix/lib/$folder" "$part/old-$folder"
	mv "$part/lib/$folder" "$prefix/lib/$folder"
done
for program in enn enn-torchrun; do
	mv -f "$part/bin/$program" "$prefix/bin/$program"
done

printf '%s is in %s\n' "$("$prefix/bin/enn" --version)" "$prefix"
case ":$PATH:" in
	*":$prefix/bin:"*) ;;
	*) printf 'add it to PATH:          export PATH="%s/bin:$PATH"\n' "$prefix" ;;
esac
printf 'for `import enn`:        export PYTHONPATH="%s/lib/enn/python"\n' "$prefix"
printf 'for `enn train`:         python3 -m pip install torch==2.11.0\n'
printf 'to see what is missing:  enn doctor\n'
