//! Attributes that a forked process inherits from its server, and an executed one from the launcher: where the two differ, the server does not fit.
//!
//! All of them are read from /proc, for this process and the other one alike. Source: proc(5), namespaces(7).

use std::fs;

/// Files that are compared as they are.
const FILES: [(&str, &str); 5] = [
    ("control group", "cgroup"),
    ("score for the out-of-memory killer", "oom_score_adj"),
    ("security label", "attr/current"),
    ("personality", "personality"),
    ("filter of core dumps", "coredump_filter"),
];
const LINKS: [(&str, &str); 9] = [
    ("root directory", "root"),
    ("mount namespace", "ns/mnt"),
    ("network namespace", "ns/net"),
    ("pid namespace", "ns/pid_for_children"),
    ("user namespace", "ns/user"),
    ("IPC namespace", "ns/ipc"),
    ("host name's namespace", "ns/uts"),
    ("control groups' namespace", "ns/cgroup"),
    ("time namespace", "ns/time_for_children"),
];
/// Lines of `status` that are compared.
const STATUS: [(&str, &str); 12] = [
    ("user", "Uid"),
    ("group", "Gid"),
    ("groups", "Groups"),
    ("inheritable capabilities", "CapInh"),
    ("permitted capabilities", "CapPrm"),
    ("effective capabilities", "CapEff"),
    ("bound on capabilities", "CapBnd"),
    ("ambient capabilities", "CapAmb"),
    ("no-new-privileges flag", "NoNewPrivs"),
    ("filters of system calls", "Seccomp_filters"),
    ("set of CPUs", "Cpus_allowed_list"),
    ("set of memory nodes", "Mems_allowed_list"),
];
/// Fields of `stat` that are compared, by their numbers in proc(5).
const STAT: [(&str, usize); 3] = [("niceness", 19), ("real-time priority", 40), ("scheduling policy", 41)];
/// Number of the first field after the name, which may hold any character.
const STAT_FIRST: usize = 3;
/// Limit on the characters of a value in a sentence.
const SHOWN_CHARS_MAX: usize = 80;

/// Returns the first difference between process `pid` and this one, as a sentence without an end; `None`: there is none.
pub(super) fn difference(pid: u32) -> Option<String> {
    let own = surroundings("self");
    let other = surroundings(&pid.to_string());
    let differs = own.iter().zip(&other).find(|(own, other)| own != other);
    differs.map(|(own, other)| format!("its {} is {}, that of this run is {}", own.what, other.shown(), own.shown()))
}

/// One attribute; `None`: the system does not tell its value.
#[derive(Debug, PartialEq)]
struct InheritedAttribute {
    what: String,
    value: Option<String>,
}

impl InheritedAttribute {
    fn shown(&self) -> String {
        let value = self.value.as_deref().unwrap_or("not known");
        match value.char_indices().nth(SHOWN_CHARS_MAX) {
            Some((end, _)) => format!("{}…", &value[..end]),
            None => value.to_owned(),
        }
    }
}

/// Returns the attributes of the process with this name in /proc, in the same order for every process.
fn surroundings(process: &str) -> Vec<InheritedAttribute> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{process}/{name}")).ok();
    let found = |what: &str, value| InheritedAttribute { what: what.to_owned(), value };
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut all: Vec<InheritedAttribute> =
        FILES.iter().map(|(what, name)| found(what, read(name).map(|text| words(&text)))).collect();
    all.extend(LINKS.iter().map(|(what, name)| {
        let target = fs::read_link(format!("/proc/{process}/{name}")).ok();
        found(what, target.map(|target| target.display().to_string()))
    }));
    let status = read("status").unwrap_or_default();
    all.extend(STATUS.iter().map(|(what, name)| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found(what, line.map(words))
    }));
    let stat = read("stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    all.extend(
        STAT.iter().map(|(what, number)| found(what, fields.get(number - STAT_FIRST).map(|field| (*field).to_owned()))),
    );
    // The first line names the columns, which are separated by two spaces or more.
    let limits = read("limits").unwrap_or_default();
    all.extend(limits.lines().skip(1).map(|line| {
        let (name, values) = line.split_once("  ").unwrap_or((line, ""));
        found(&format!("limit \"{name}\""), Some(words(values)))
    }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io,
        process::{Child, Command, Stdio},
    };

    fn differs(command: &mut Command) -> Option<String> {
        let mut child: Child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let found = difference(child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        found
    }

    #[test]
    fn a_child_is_like_its_parent_until_something_is_changed() {
        assert_eq!(difference(std::process::id()), None);
        assert_eq!(differs(&mut Command::new("cat")), None);
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{script}; read nothing")]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            // What the script prints says that it has changed itself.
            let mut line = String::new();
            io::BufRead::read_line(&mut io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
            let found = difference(child.id());
            drop(child.stdin.take());
            child.wait().unwrap();
            found.unwrap_or_default()
        };
        let found = run("ulimit -S -n 77; echo");
        assert!(
            found.starts_with("its limit \"Max open files\" is 77 ") && found.contains("of this run is"),
            "{found}"
        );
        assert!(run("renice -n 5 -p $$ > /dev/null; echo").starts_with("its niceness is 5, "));
        assert!(run("taskset -cp 0 $$ > /dev/null; echo").starts_with("its set of CPUs is 0, "));
        assert!(
            run("echo 500 > /proc/self/oom_score_adj; echo 500 > /proc/$$/oom_score_adj; echo").contains("is 500,")
        );
    }

    #[test]
    fn a_process_that_is_gone_is_not_alike() {
        assert!(difference(u32::MAX >> 1).unwrap().contains("is not known"));
    }
}
