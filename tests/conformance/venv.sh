#!/usr/bin/env bash
# Makes TARGET/venv with the packages of requirements.txt, once: `venv.sh PYTHON TARGET`; with a NAME behind it TARGET/venv-NAME with
# those of requirements-NAME.txt, an OPTION of uv's behind that. uv does it in half a minute; it is itself fetched from PyPI into TARGET/tools, so nothing outside
# TARGET changes.
set -euo pipefail

python=$1
target=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
suffix=${3:+-$3}
pins=$here/requirements$suffix.txt
venv=$target/venv$suffix
gib_needed=$([[ $suffix ]] && echo 3 || echo 6)
stamp=$venv/.complete
uv_version=0.13.8

mkdir -p "$target"
exec 9> "$target/.venv.lock"
flock 9
if [[ -f $stamp ]] && cmp --silent "$stamp" "$pins"; then exit 0; fi

fail() {
	printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
	exit 4
}

free_kib=$(df --output=avail -k "$target" | tail -n 1)
((free_kib > gib_needed * 1024 * 1024)) || fail "$target has $((free_kib / 1024 / 1024)) GiB free, $venv needs $gib_needed" \
	"free some space, or set ENN_PYTHON to a Python that has torch 2.11.0"

uv=$target/tools/uv/bin/uv
if [[ ! -x $uv ]]; then
	"$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$target/tools/uv" "uv==$uv_version" ||
		fail "uv could not be fetched from PyPI" "check the network, or set ENN_PYTHON to a Python that has torch 2.11.0"
fi
rm -f "$stamp"
"$uv" venv --quiet --clear --python "$python" "$venv"
"$uv" pip install --quiet --python "$venv/bin/python" ${4:+"$4"} --requirement "$pins" ||
	fail "the packages of $pins could not be fetched" "check the network; what was downloaded is cached"
cp "$pins" "$stamp"
