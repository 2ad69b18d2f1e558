//! Whether a node sees a run as its leader does.

use enn_common::wire::node_agent::RunFacts;
use enn_process::run_dir;
use std::{fs, path::Path};

/// Returns one sentence on what differs.
pub(super) fn check_view(facts: &RunFacts) -> Result<(), String> {
    let at = |path: &Path| path.display().to_string();
    let config = facts.run_dir.join(run_dir::RUN_JSON);
    let text = fs::read(&config).map_err(|error| format!("{}: {error}", at(&config)))?;
    if blake3::hash(&text).to_hex().as_str() != facts.config {
        return Err(format!("{} holds something else", at(&config)));
    }
    let meta = facts.staged.join("meta.json");
    fs::metadata(&meta).map(|_| ()).map_err(|error| format!("{}: {error}", at(&meta)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_and_data_have_to_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().to_owned();
        let staged = dir.path().join("staged");
        let facts = RunFacts { run_dir, config: blake3::hash(b"{}").to_hex().to_string(), staged };
        assert!(check_view(&facts).unwrap_err().contains("run.json"));
        fs::write(dir.path().join("run.json"), "[]").unwrap();
        assert!(check_view(&facts).unwrap_err().ends_with("holds something else"));
        fs::write(dir.path().join("run.json"), "{}").unwrap();
        assert!(check_view(&facts).unwrap_err().contains("meta.json"));
        fs::create_dir(&facts.staged).unwrap();
        fs::write(facts.staged.join("meta.json"), "{}").unwrap();
        assert_eq!(check_view(&facts), Ok(()));
    }
}
