//! The script word for word, what bash makes of it, and options that are refused.

use super::*;
use proptest::prelude::*;
use std::process::Command;

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn error(options: &JobOptions) -> String {
    script(options, &words("enn run train.py")).unwrap_err().to_string()
}

#[test]
fn a_script_with_everything() {
    let options = JobOptions {
        nodes: 4,
        gpus_per_node: Some("h100:8".into()),
        cpus_per_node: Some(96),
        mem: Some("0".into()),
        time: Some("1-12:00:00".into()),
        partition: Some("gpu,long".into()),
        account: Some("ada".into()),
        qos: Some("high".into()),
        sbatch_args: vec!["--exclusive".into(), "--comment=\"first try\"".into()],
        ..JobOptions::default()
    };
    let expected = r#"#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=h100:8
#SBATCH --cpus-per-task=96
#SBATCH --mem=0
#SBATCH --time=1-12:00:00
#SBATCH --partition=gpu,long
#SBATCH --account=ada
#SBATCH --qos=high
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@90
#SBATCH --exclusive
#SBATCH --comment="first try"

set -euo pipefail

# The nodes of the run know each other by this secret, which is in no file and on no command line.
ENN_TOKEN=${ENN_TOKEN:-$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')}
export ENN_TOKEN

# In the place of this shell srun receives Slurm's signals and passes them on to every node.
exec srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpu-bind=none \
	--kill-on-bad-exit=1 --export=ALL \
	/opt/enn run --nproc-per-node 8 dir/train.py --name 'a b'
"#;
    let program = ["/opt/enn", "run", "--nproc-per-node", "8", "dir/train.py", "--name", "a b"].map(str::to_owned);
    assert_eq!(script(&options, &program).unwrap(), expected);
}

#[test]
fn an_elastic_run_outlives_a_node() {
    let options = JobOptions { nodes: 4, elastic: true, no_requeue: true, ..JobOptions::default() };
    let text = script(&options, &words("enn run --nnodes 3:4 -m train")).unwrap();
    for line in
        ["#SBATCH --no-kill\n", "#SBATCH --no-requeue\n", "--kill-on-bad-exit=0 --no-kill ", "#SBATCH --job-name=enn\n"]
    {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("#SBATCH --requeue"));
}

/// Runs the script under bash with a `srun` that prints its words and the token's length.
fn under_bash(text: &str, token: Option<&str>) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("job.sh"), text).unwrap();
    let srun = dir.path().join("srun");
    std::fs::write(&srun, "#!/bin/sh\nprintf '%s\\0' \"$@\" \"${#ENN_TOKEN}\" \"$ENN_TOKEN\"\n").unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&srun).status().unwrap().success());
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let mut bash = Command::new("bash");
    bash.arg(dir.path().join("job.sh")).env_clear().env("PATH", path).env("SLURM_JOB_NUM_NODES", "4");
    bash.envs(token.map(|token| ("ENN_TOKEN", token)));
    let output = bash.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn the_token_is_drawn_when_the_job_runs() {
    let text = script(&JobOptions { nodes: 4, ..JobOptions::default() }, &words("enn run a.py")).unwrap();
    let first = under_bash(&text, None);
    let second = under_bash(&text, None);
    assert_eq!(first[first.len() - 2], "64", "32 bytes in hexadecimal");
    assert_ne!(first.last(), second.last());
    assert_eq!(under_bash(&text, Some("given")).last().map(String::as_str), Some("given"));
    assert_eq!(first[..3], ["--nodes=4", "--ntasks=4", "--ntasks-per-node=1"]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let with = |change: fn(&mut JobOptions)| {
        let mut options = JobOptions { nodes: 1, ..JobOptions::default() };
        change(&mut options);
        error(&options)
    };
    assert_eq!(with(|o| o.nodes = 0), "--nodes: \"0\" asks for nothing");
    assert!(with(|o| o.partition = Some("a b".into())).starts_with("--partition: \"a b\" has a character"));
    assert!(with(|o| o.output = Some("a\n#SBATCH --uid=0".into())).starts_with("--output: "));
    assert!(with(|o| o.job_name = Some(String::new())).contains("is empty"));
    assert!(with(|o| o.account = Some("--uid".into())).contains("begins with a hyphen"));
    assert!(with(|o| o.time = Some("soon".into())).starts_with("--time: \"soon\" is no time limit"));
    assert!(with(|o| o.signal_before = Some(0)).contains("between 1 and 65535"));
    assert!(with(|o| (o.time, o.signal_before) = (Some("1".into()), Some(60))).contains("before it began"));
    assert!(with(|o| o.sbatch_args = vec!["exclusive".into()]).contains("is no option"));
    assert!(with(|o| o.sbatch_args = vec!["--a\n--b".into()]).contains("more than one line"));
    for argument in ["-n8", "-n 8", "--ntasks=8", "--array=1-3", "--wrap=true"] {
        let options = JobOptions { nodes: 1, sbatch_args: vec![argument.into()], ..JobOptions::default() };
        assert!(error(&options).contains("one task on each node"), "{argument}");
    }
}

#[test]
fn time_limits_in_slurms_forms() {
    for (text, seconds) in
        [("90", 5400), ("1:30", 90), ("02:00:00", 7200), ("2-0", 172_800), ("1-1:30", 91_800), ("1-00:00:01", 86_401)]
    {
        assert_eq!(limit_s(text).unwrap(), Some(seconds), "{text}");
    }
    assert_eq!(limit_s("unlimited").unwrap(), None);
    for text in ["", "1:2:3:4", "-1", "1-", "1-1:1:1:1", "1.5", "4294967296"] {
        assert!(limit_s(text).is_err(), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_shell_gives_every_word_back(more in prop::collection::vec("[ -~äß\\n\\t]{0,12}", 1..6)) {
        let mut program = words("enn run");
        program.extend(more);
        let text = script(&JobOptions { nodes: 1, ..JobOptions::default() }, &program).unwrap();
        let heard = under_bash(&text, Some("x"));
        prop_assert_eq!(&heard[6..heard.len() - 2], program.as_slice());
    }
}
