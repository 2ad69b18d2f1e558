#!/usr/bin/env bash
# A real Slurm of four nodes on this host: munged, slurmctld and four slurmd, all as the current user, all below one folder.
#
#   tests/slurm/cluster.sh DIR [--remove]
#
# Prints `export SLURM_CONF=…` and `ready` when all nodes are idle, then stays until its standard input ends or it is told
# to stop; then it ends everything it started, by process id, and removes DIR when asked to. Several clusters can run side
# by side: ports are chosen free.
set -euo pipefail

readonly NODES=4
readonly WAIT_S=60
dir=$(mkdir -p "${1:?usage: cluster.sh DIR [--remove]}" && cd "$1" && pwd)
host=$(hostname -s)
remove=${2:-}
pids=()
bound=()
if command -v setpriv > /dev/null; then
	bound=(setpriv --pdeathsig TERM --)
fi

die() {
	printf 'error: %s\n' "$*" >&2
	tail -n 5 "$dir"/log/* >&2 || true
	exit 1
}

# Whether somebody answers on the port. A name is looked up nowhere.
taken() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }

# The first of NODES + 1 free ports.
free_ports() {
	local base port try
	for try in {0..49}; do
		base=$((17000 + (RANDOM % 300) * 10))
		((try == 0)) && base=17000
		for ((port = base; port <= base + NODES; port++)); do
			taken "$port" && continue 2
		done
		# Two clusters that start together each keep a folder as their claim.
		if mkdir "${TMPDIR:-/tmp}/enn-slurm-ports-$base" 2> /dev/null; then
			echo "$base"
			return
		fi
	done
	return 1
}

write_conf() {
	cat > "$dir/slurm.conf" <<- CONF
		ClusterName=enn
		SlurmctldHost=$host(127.0.0.1)
		SlurmctldPort=$base
		SlurmUser=$user
		SlurmdUser=$user
		AuthType=auth/munge
		AuthInfo=socket=$dir/munge/socket,cred_expire=15
		CredType=cred/munge
		MpiDefault=none
		ProctrackType=proctrack/pgid
		TaskPlugin=task/none
		SwitchType=switch/none
		SelectType=select/cons_tres
		SelectTypeParameters=CR_Core
		SlurmdParameters=config_overrides
		StateSaveLocation=$dir/state
		SlurmdSpoolDir=$dir/spool/%n
		SlurmctldPidFile=$dir/slurmctld.pid
		SlurmdPidFile=$dir/slurmd.%n.pid
		SlurmctldLogFile=$dir/log/slurmctld.log
		SlurmdLogFile=$dir/log/slurmd.%n.log
		SlurmctldTimeout=30
		SlurmdTimeout=30
		KillWait=5
		ReturnToService=2
		SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0
		NodeName=n[1-$NODES] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((base + 1))-$((base + NODES))] CPUs=2 RealMemory=1000
		PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 State=UP
	CONF
	# From 23.11 on Slurm asks for a cgroup plugin even where nothing uses it.
	local version
	version=$(slurmd -V | grep -oE '[0-9]+\.[0-9]+' | head -n 1)
	if [[ $(printf '%s\n' 23.11 "$version" | sort -V | head -n 1) == 23.11 ]]; then
		echo 'CgroupPlugin=disabled' > "$dir/cgroup.conf"
	fi
}

start() {
	local name=$1
	shift
	# They end also when this script is killed.
	"${bound[@]}" "$@" < /dev/null > "$dir/log/$name.out" 2>&1 &
	pids+=($!)
}

# Waits for a command to succeed, at most WAIT_S seconds.
await() {
	local deadline=$((SECONDS + WAIT_S))
	until "$@" > /dev/null 2>&1; do
		((SECONDS < deadline)) || return 1
		read -rt 0.1 <> <(:) || true
	done
}

all_idle() { [[ $(sinfo -h -t idle -o %D) == "$NODES" ]]; }

stop() {
	trap '' EXIT INT TERM HUP
	set +e
	if [[ -n ${SLURM_CONF:-} ]] && timeout 5 scontrol ping > /dev/null 2>&1; then
		timeout 10 scancel --quiet --user="$user"
		timeout 15 bash -c 'until [[ -z $(squeue -h) ]]; do read -rt 0.2 <> <(:); done'
	fi
	local index pid
	for ((index = ${#pids[@]} - 1; index >= 0; index--)); do
		pid=${pids[index]}
		kill "$pid" 2> /dev/null
		timeout 10 tail --pid="$pid" -f /dev/null || kill -KILL "$pid" 2> /dev/null
		wait "$pid" 2> /dev/null
	done
	[[ $remove != --remove ]] || rm -rf "$dir"
	[[ -z ${base:-} ]] || rmdir "${TMPDIR:-/tmp}/enn-slurm-ports-$base" 2> /dev/null
}

export PATH=$PATH:/usr/sbin:/sbin
for program in munged slurmctld slurmd srun sbatch; do
	command -v "$program" > /dev/null || die "$program is missing; tests/slurm/install.sh installs it"
done
user=$(id -un)
base=$(free_ports) || die "no $((NODES + 1)) free ports from 17000 on"
trap stop EXIT
trap 'exit 143' INT TERM HUP

mkdir -p "$dir"/{munge,state,spool,log}
chmod 700 "$dir/munge"
(umask 077 && head -c 128 /dev/urandom > "$dir/munge/key")
write_conf
export SLURM_CONF=$dir/slurm.conf

# --force: the folder of the socket is private, which munged takes for a mistake.
start munged munged --force --foreground --num-threads=10 --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
	--pid-file="$dir/munge/pid" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
await test -S "$dir/munge/socket" || die "munged did not start"
start slurmctld slurmctld -D
await scontrol ping || die "slurmctld did not start"
for ((node = 1; node <= NODES; node++)); do
	mkdir -p "$dir/spool/n$node"
	start "slurmd.n$node" slurmd -D -N "n$node"
done
await all_idle || die "not all nodes became idle: $(sinfo -h -o '%N %t %E' 2>&1)"
printf 'export SLURM_CONF=%s\nready\n' "$SLURM_CONF"

# The end of standard input is the end of whoever wanted the cluster.
cat > /dev/null
