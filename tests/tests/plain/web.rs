//! `enn top --web`: the page's data over HTTP, of a run that is under way, of one that begins later, and of one that is over.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_tests::launch::{Ended, Place, end, enn, until};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

/// Each worker says something and waits for the file `end`.
const WORKER: &str = r#"mkdir -p pids; echo $$ > pids/$RANK; echo "rank $RANK says <b>this</b>"
while [ ! -e end ]; do sleep 0.05; done"#;

/// `enn top --web` at work, and where its page is.
struct ServedPage {
    child: Child,
    address: String,
    token: String,
}

fn top(place: &Place, words: &[&str]) -> Command {
    let mut command = Command::new(enn());
    command.arg("top").args(words).current_dir(place.dir.path()).env("XDG_STATE_HOME", place.path("state"));
    command
        .env_remove("ENN_RUNS")
        .env_remove("HOME")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl ServedPage {
    fn start(place: &Place, words: &[&str]) -> Self {
        let mut child = top(place, &[words, &["--web", "--port", "0"]].concat()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
        let (address, token) = url.trim().split_once("/?token=").unwrap();
        let address = address.strip_prefix("http://").unwrap().to_owned();
        assert!(address.starts_with("127.0.0.1:"), "{url}");
        Self { address, token: token.to_owned(), child }
    }

    /// Status and body of the answer to a request.
    fn ask(&self, path: &str, token: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let host = &self.address;
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n");
        stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    #[track_caller]
    fn run(&self, query: &str) -> Value {
        let (status, body) = self.ask(&format!("/run?{query}"), &self.token);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        until(what, || {
            last = self.run("");
            holds(&last)
        });
        last
    }

    fn end(self) -> Ended {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT).unwrap();
        end(self.child)
    }
}

fn states(run: &Value) -> Vec<&str> {
    run["workers"].as_array().into_iter().flatten().map(|worker| worker["state"].as_str().unwrap()).collect()
}

fn launch(place: &Place, runs: &Path) -> Child {
    let runs = runs.to_str().unwrap();
    place.command(&["--standalone", "--nproc-per-node", "2", "--runs-dir", runs]).spawn().unwrap()
}

#[test]
fn a_page_shows_a_run_that_begins_later_and_its_end_and_the_next_one() {
    let place = Place::new(WORKER);
    let runs = place.path("runs of a name");
    std::fs::create_dir(&runs).unwrap();
    let page = ServedPage::start(&place, &["--runs-dir", runs.to_str().unwrap()]);
    assert_eq!(page.ask("/run", "another token").0, 401);
    assert_eq!(page.ask("/", "").0, 200);
    assert_eq!((page.run("")["run"].as_u64(), page.run("")["state"].as_str()), (Some(0), Some("waiting")));

    let child = launch(&place, &runs);
    let run = page.until("the run is shown", |run| states(run) == ["running"; 2]);
    assert_eq!(
        (run["run"].as_u64(), run["mode"].as_str(), run["living"].as_bool()),
        (Some(1), Some("run"), Some(true))
    );
    let said = page.until("the log is read", |run| run["log"]["lines"][0].is_string());
    assert_eq!(said["log"]["lines"][0], "rank 0 says <b>this</b>");
    assert_eq!(page.run("run=1&rank=1")["log"]["lines"][0], "rank 1 says <b>this</b>");
    let load = page.until("the workers are measured", |run| run["workers"][1]["memory"].is_string());
    assert!(load["workers"][1]["memory"].as_str().unwrap().ends_with('B'), "{load}");

    // A request that waits is answered as soon as there is something new.
    let version = page.run("")["version"].as_u64().unwrap();
    assert!(page.run(&format!("run=1&version={version}"))["version"].as_u64().unwrap() > version);
    std::fs::write(place.path("end"), "").unwrap();
    assert_eq!(end(child).code, Some(0));
    let over = page.until("the end is shown", |run| run["state"] == "finished");
    assert_eq!(states(&over), ["done"; 2]);

    let next = launch(&place, &runs);
    page.until("the next run is shown", |run| run["run"] == 2 && run["state"] == "finished");
    assert_eq!(end(next).code, Some(0));
    let ended = page.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
    assert!(ended.stderr.contains("Ctrl-C ends the page"), "{}", ended.stderr);
}

#[test]
fn what_cannot_be_served_is_said_in_a_sentence() {
    let place = Place::new("exit 0");
    assert_eq!(place.run(&["--standalone"]).code, Some(0));
    let page = ServedPage::start(&place, &[]);
    page.until("a run that is over is shown", |run| run["state"] == "finished");
    let port = page.address.rsplit_once(':').unwrap().1.to_owned();
    let refused = |words: &[&str]| end(top(&place, words).spawn().unwrap());
    let taken = refused(&["--web", "--port", &port]);
    let user = format!("enn, pid {}", page.child.id());
    for part in [format!("port {port} of 127.0.0.1"), user, "hint: `--port 0`".to_owned()] {
        assert!(taken.stderr.contains(part.as_str()), "{part}: {}", taken.stderr);
    }
    assert_ne!(taken.code, Some(0));
    let unknown = refused(&["no-such-run", "--web", "--port", "0"]);
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("no run \"no-such-run\"") && unknown.stdout.is_empty(), "{}", unknown.stderr);
    assert_eq!(refused(&["--port", "0"]).code, Some(2), "--port is about the page");
    assert_eq!(page.end().code, Some(0));
}
