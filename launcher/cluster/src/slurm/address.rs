//! The address of a node: its name, else the address that Slurm has for it.
//!
//! Slurm's node names need not be network names; clouds often assign only an address.

use super::{
    command::{Commands, answer},
    hostlist::NAME_BYTES_MAX,
    records::ScontrolRecord,
};
use std::net::ToSocketAddrs;

/// Returns a name or address by which `node` is reached from here; its own name when nothing better is known.
pub fn address(node: &str, commands: &dyn Commands) -> String {
    if (node, 0).to_socket_addrs().is_ok_and(|mut addresses| addresses.next().is_some()) {
        return node.to_owned();
    }
    let words = ["-o", "show", "node", node].map(Into::into);
    let record = answer(commands, "scontrol", &words, "");
    record.ok().and_then(|text| node_address(&text)).unwrap_or_else(|| node.to_owned())
}

/// Returns `NodeAddr` from an answer of `scontrol -o show node`.
fn node_address(answer: &str) -> Option<String> {
    let address = ScontrolRecord::of(answer)?.get("NodeAddr")?;
    (address.len() <= NAME_BYTES_MAX).then(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{SlurmError, command::CommandOutput},
        *,
    };
    use std::ffi::OsString;

    struct Says(&'static str, i32);

    impl Commands for Says {
        fn run(&self, _: &'static str, _: &[OsString], _: &str) -> Result<CommandOutput, SlurmError> {
            Ok(CommandOutput { code: self.1, stdout: self.0.into(), stderr: String::new() })
        }
    }

    #[test]
    fn a_name_that_resolves_is_kept() {
        assert_eq!(address("127.0.0.1", &Says("NodeAddr=10.0.0.1", 0)), "127.0.0.1");
    }

    #[test]
    fn a_name_of_slurm_only_is_looked_up() {
        let node = include_str!("captured/show-node-n2.txt");
        assert_eq!(address("enn-no-such-node.invalid", &Says(node, 0)), "127.0.0.1");
        assert_eq!(address("enn-no-such-node.invalid", &Says("", 1)), "enn-no-such-node.invalid");
        assert_eq!(address("enn-no-such-node.invalid", &Says("slurm_load_node error", 0)), "enn-no-such-node.invalid");
    }
}
