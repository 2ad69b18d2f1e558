//! The search of a run for a suitable warm server, and the start of one if there is none.

use super::{
    Preload, WarmSettings,
    link::{Link, OURS, Ready, hooked, logged},
    recipe::Recipe,
    request::JoinRequest,
    surroundings,
    warm::{self, WarmServer},
};
use crate::{Binding, MARK_VARIABLE, Process};
use std::{fs, io, os::fd::AsRawFd, path::PathBuf};

/// Arguments of a command that is never executed: the hook answers first.
const PLACEHOLDER: [&str; 2] = ["-u", "/.enn-warm-server"];
/// Limit on one user's servers; before another one is started, the least recently used is stopped.
const SERVERS_MAX: usize = 4;
/// Slurm's daemon of a job step: a server started in the step ends with it.
const STEP_DAEMON: &str = "slurmstepd";
const ANCESTORS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct WarmSearch {
    warm: WarmSettings,
    place: PathBuf,
    /// Servers that were not queried yet, in order; `None`: they were not listed yet.
    pub(super) untried: Option<std::vec::IntoIter<WarmServer>>,
    /// Server that is queried, or serves.
    at: Option<WarmServer>,
    /// Reason why the first queried server does not fit.
    pub(super) why: Option<String>,
    /// Process id of the server that was started here.
    pub(super) started: Option<u32>,
}

impl WarmSearch {
    /// Prepares a search; no server is queried yet.
    ///
    /// # Errors
    /// The folder is accessible to other users, or any error of the system.
    pub(super) fn new(warm: &WarmSettings) -> io::Result<Self> {
        let place = warm::place(&warm.parent)?;
        Ok(Self { warm: warm.clone(), place, untried: None, at: None, why: None, started: None })
    }

    /// Queries the next server. `None`: there is none.
    pub(super) fn next(&mut self, request: &JoinRequest) -> Option<Link> {
        if self.untried.is_none() {
            let found =
                warm::list(&self.place).inspect_err(|error| tracing::debug!(%error, "warm servers are not known"));
            let mut servers = found.unwrap_or_default();
            servers.retain(WarmServer::has_our_files);
            self.untried = Some(servers.into_iter());
        }
        for server in self.untried.as_mut()? {
            match server.join(request) {
                Ok(link) => {
                    self.at = Some(server);
                    return Some(link);
                }
                Err(error) => self.why.get_or_insert(error.to_string()),
            };
        }
        None
    }

    /// Returns whether the queried server still imports.
    pub(super) fn is_importing(&self) -> bool {
        self.at.as_ref().is_some_and(WarmServer::is_importing)
    }

    /// Notes that the queried server does not fit.
    pub(super) fn refused(&mut self, why: String) {
        self.why.get_or_insert(why);
        self.at = None;
    }

    pub(super) fn log(&self) -> Option<PathBuf> {
        Some(self.at.as_ref()?.log_path())
    }

    /// Checks that workers of this server are suitable for the run.
    ///
    /// # Errors
    /// The reason why they are not.
    pub(super) fn accept(&self, ready: &Ready, wanted: &[String]) -> Result<(), String> {
        let known = |name: &String| ready.modules.contains(name) || ready.missing.iter().any(|gone| gone.name == *name);
        if let Some(name) = wanted.iter().find(|name| !known(name)) {
            return Err(format!("it has not preloaded {name}"));
        }
        if let Some(difference) = surroundings::difference(ready.pid) {
            return Err(difference);
        }
        if let Some(server) = &self.at {
            server.use_now();
        }
        Ok(())
    }

    pub(super) fn start(&mut self, command: &Recipe, preload: &Preload, request: &JoinRequest) -> io::Result<Link> {
        self.make_room();
        let (server, socket) = WarmServer::create(&self.place)?;
        let outlets = logged(&server.log_path())?;
        let mut program =
            hooked(command.with_args(PLACEHOLDER).command(), "warm", preload, server.folder(), socket.as_raw_fd());
        program
            .env(format!("{OURS}IDLE"), self.warm.idle.as_secs_f64().to_string())
            .env(format!("{OURS}UNTIL"), step_daemon().map_or_else(String::new, |pid| pid.to_string()))
            .env_remove(MARK_VARIABLE);
        let binding = Binding::inheriting(socket.as_raw_fd()).in_new_session();
        let started = Process::detach(&program, &outlets, binding);
        self.started = Some(started.inspect_err(|_| server.remove())?);
        let link = server.join(request)?;
        self.at = Some(server);
        Ok(link)
    }

    /// Stops the least recently used servers, to make room for one more.
    fn make_room(&self) {
        for server in warm::list(&self.place).unwrap_or_default().iter().skip(SERVERS_MAX - 1) {
            if let Err(error) = server.stop() {
                tracing::debug!(%error, "a warm server could not be stopped");
            }
        }
    }
}

/// Returns the daemon of the Slurm step that this process is in.
fn step_daemon() -> Option<u32> {
    let mut pid = std::process::id();
    for _ in 0..ANCESTORS_MAX {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.rsplit_once(')')?;
        if name.split_once('(')?.1.starts_with(STEP_DAEMON) {
            return Some(pid);
        }
        pid = rest.split_whitespace().nth(1)?.parse().ok().filter(|parent| *parent > 1)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preload::{hook, warm::tests::play};
    use std::{
        fs::File,
        path::Path,
        time::{Duration, SystemTime},
    };

    fn request(text: &str) -> JoinRequest {
        JoinRequest { body: text.as_bytes().to_vec(), fds: Vec::new() }
    }

    fn search(parent: &Path) -> WarmSearch {
        WarmSearch::new(&WarmSettings { parent: parent.to_owned(), idle: Duration::from_secs(60), leave: false })
            .unwrap()
    }

    #[test]
    fn a_run_asks_servers_of_its_own_version_the_last_used_first() {
        let parent = tempfile::tempdir().unwrap();
        let place = warm::place(parent.path()).unwrap();
        let ours = |name: &str| format!("{:016x}-{name}", hook::digest());
        let no: &[&str] = &[r#"{"refuse": "no"}"#];
        let old = play(&place, &ours("old"), no);
        let new = play(&place, &ours("new"), no);
        let other = play(&place, "0123-other", no);
        let an_hour_ago = SystemTime::now() - Duration::from_secs(3_600);
        File::options().write(true).open(place.join(ours("old/ready"))).unwrap().set_modified(an_hour_ago).unwrap();
        let mut search = search(parent.path());
        assert!(search.untried.is_none());
        for (name, why) in [("new", "it is busy"), ("old", "it is old")] {
            assert!(search.next(&request(name)).is_some());
            assert!(!search.is_importing());
            search.refused(why.to_owned());
        }
        assert!(search.next(&request("none")).is_none() && search.untried.is_some());
        assert_eq!(search.why.as_deref(), Some("it is busy"));
        assert_eq!((old.join().unwrap(), new.join().unwrap()), (vec!["old".to_owned()], vec!["new".to_owned()]));
        let strange = warm::list(&place).unwrap().into_iter().find(|server| !server.has_our_files()).unwrap();
        assert!(strange.stop().is_err(), "it answers what it was told to");
        assert_eq!(other.join().unwrap(), ["stop"]);
    }

    #[test]
    fn a_server_without_the_modules_or_elsewhere_does_not_fit() {
        let parent = tempfile::tempdir().unwrap();
        let search = search(parent.path());
        let ready =
            |pid| Ready { pid, modules: vec!["torch".to_owned()], missing: Vec::new(), seconds: 1.0, warm: false };
        let wanted = ["torch".to_owned()];
        assert_eq!(search.accept(&ready(std::process::id()), &wanted), Ok(()));
        let more = ["torch".to_owned(), "torchvision".to_owned()];
        assert_eq!(
            search.accept(&ready(std::process::id()), &more),
            Err("it has not preloaded torchvision".to_owned())
        );
        assert!(search.accept(&ready(u32::MAX >> 1), &wanted).unwrap_err().contains("is not known"));
    }
}
