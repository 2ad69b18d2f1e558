//! The prefix of a teed line: torchrun's default or the user's template. Pure.

use super::worker_identity::WorkerIdentity;
use crate::template::substitute;

/// Returns the prefix of a worker's lines.
pub(super) fn prefix(template: Option<&str>, who: &WorkerIdentity) -> Vec<u8> {
    match template.filter(|template| !template.is_empty()) {
        None => format!("[{}{}]:", who.role, who.local_rank).into_bytes(),
        Some(template) => substitute(template, |name| value(name, who)).into_bytes(),
    }
}

fn value(name: &str, who: &WorkerIdentity) -> Option<String> {
    match name {
        "role_name" => Some(who.role.clone()),
        "rank" => Some(who.rank.to_string()),
        "local_rank" => Some(who.local_rank.to_string()),
        "hostname" => Some(who.host.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_names_role_ranks_and_host() {
        let who = WorkerIdentity { role: "trainer".into(), local_rank: 3, rank: 11, host: "r12i0n8".into() };
        let fill = |template| String::from_utf8(prefix(template, &who)).unwrap();
        assert_eq!(fill(None), "[trainer3]:");
        assert_eq!(fill(Some("")), "[trainer3]:");
        assert_eq!(fill(Some("[${role_name}:${rank}/${local_rank}] ")), "[trainer:11/3] ");
        assert_eq!(fill(Some("$rank-$local_rank|")), "11-3|");
        assert_eq!(fill(Some("${hostname}:$rank: ")), "r12i0n8:11: ");
        assert_eq!(fill(Some("$$rank ${pid}")), "$rank ${pid}");
    }
}
