//! What a person sees on a terminal: while a command works, and when it has ended.

use super::{Place, data};
use enn_tests::terminal::{Screen, Terminal};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::process::Command;

/// More epochs than anybody waits for.
const LONG: &[&str] = &["train", "strange.toml", "--set", "train.epochs=100000", "--set", "train.patience=100000"];
/// Both ends of a bar.
const BAR: [char; 2] = ['━', '─'];

fn place() -> Place {
    Place::new(&data(), &[])
}

fn command(place: &Place, words: &[&str]) -> Command {
    let mut command = place.command(words);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    command
}

fn is_bar(row: &str) -> bool {
    BAR.iter().any(|part| row.contains(*part))
}

/// Lines with a bar that are seen.
fn bars(screen: &Screen) -> Vec<String> {
    screen.rows().into_iter().filter(|row| is_bar(row)).collect()
}

/// A bar is one line, whatever else is seen, and the end leaves none.
#[test]
fn training_draws_one_line_of_progress_and_leaves_none() {
    let place = place();
    for columns in [100, 40] {
        let mut terminal = Terminal::start(&command(&place, LONG), columns, 24);
        let mut most = 0;
        terminal.until("the progress of training", |screen| {
            most = most.max(bars(screen).len());
            bars(screen).iter().any(|row| row.contains("epoch"))
        });
        assert_eq!(most, 1, "{:?}", terminal.screen.rows());
        if columns == 100 {
            let row = bars(&terminal.screen).remove(0);
            assert!(row.contains("step ") && row.contains("loss "), "{row}");
        }
        terminal.type_in("\u{3}");
        let (code, screen) = terminal.end();
        assert_eq!(code, Some(130), "{:?}", screen.all());
        assert!(bars(&screen).is_empty(), "{:?}", screen.all());
        assert!(screen.all().concat().contains("SIGINT"), "{:?}", screen.all());
    }
}

#[test]
fn what_was_trained_is_told_when_the_bar_is_gone() {
    let place = place();
    let mut terminal = Terminal::start(&command(&place, &["train", "strange.toml"]), 100, 50);
    let mut was_drawn = false;
    terminal.until("the end of training", |screen| {
        was_drawn |= !bars(screen).is_empty();
        screen.all().iter().any(|row| row.contains("trained"))
    });
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(0), "{:?}", screen.all());
    assert!(was_drawn && bars(&screen).is_empty(), "{:?}", screen.all());
    // Predicting and staging draw on the same kind of terminal.
    for words in [&["predict", "latest", "--data", "data.csv", "--out", "p.csv"][..], &["ckpt", "verify", "latest"]] {
        let (code, screen) = Terminal::start(&command(&place, words), 60, 50).end();
        assert_eq!(code, Some(0), "{words:?}: {:?}", screen.all());
        assert!(bars(&screen).is_empty(), "{words:?}: {:?}", screen.all());
    }
    let mut stage = Command::new(enn_tests::launch::enn());
    stage.args(["stage", "strange.toml", "--out", "staged"]).current_dir(place.path()).env("TERM", "xterm");
    let (code, screen) = Terminal::start(&stage, 60, 50).end();
    assert_eq!(code, Some(0), "{:?}", screen.all());
    assert!(bars(&screen).is_empty() && screen.all().iter().any(|row| row.contains("/staged/")), "{:?}", screen.all());
}

#[test]
fn a_terminal_that_only_takes_text_is_given_lines() {
    let place = place();
    let mut dumb = command(&place, &["train", "strange.toml", "--set", "train.epochs=2"]);
    dumb.env("TERM", "dumb");
    let (code, screen) = Terminal::start(&dumb, 80, 50).end();
    assert_eq!(code, Some(0), "{:?}", screen.all());
    assert!(!screen.written.contains('\u{1b}'), "{:?}", screen.written);
    assert!(screen.all().iter().any(|row| row.contains(" s] ")), "{:?}", screen.all());
    for words in [&["ckpt", "verify", "latest"][..], &["status", "latest", "--watch"], &["metrics", "latest"]] {
        let mut dumb = command(&place, words);
        let (code, screen) = Terminal::start(dumb.env("TERM", "dumb"), 80, 50).end();
        assert_eq!(code, Some(0), "{words:?}: {:?}", screen.all());
        assert!(!screen.written.contains('\u{1b}'), "{words:?}: {:?}", screen.written);
    }
    let mut top = command(&place, &["top", "latest"]);
    let (code, screen) = Terminal::start(top.env("TERM", "dumb"), 80, 24).end();
    assert_eq!(code, Some(2));
    assert!(screen.has("hint: `enn status --watch`"), "{:?}", screen.rows());
}

#[test]
fn without_colour_the_same_is_drawn() {
    let place = place();
    let mut plain = command(&place, LONG);
    let mut terminal = Terminal::start(plain.env("NO_COLOR", "1"), 100, 24);
    terminal.until("the progress of training", |screen| bars(screen).iter().any(|row| row.contains("epoch")));
    let mut top = command(&place, &["top", "latest"]);
    let mut beside = Terminal::start(top.env("NO_COLOR", "1"), 80, 24);
    beside.until("the run", |screen| screen.has("RUNNING"));
    beside.type_in("q");
    let (code, screen) = beside.end();
    assert_eq!((code, screen.coloured), (Some(0), false), "{:?}", screen.written);
    terminal.type_in("\u{3}");
    let (code, screen) = terminal.end();
    assert_eq!((code, screen.coloured), (Some(130), false), "{:?}", screen.written);
}

#[test]
fn the_screen_of_top_fits_its_window_and_leaves_the_terminal_as_it_was() {
    let place = place();
    let mut run = place.command(&[LONG, &["-q"]].concat()).spawn().unwrap();
    enn_tests::launch::until("the run has a journal", || {
        std::fs::read_dir(place.path().join("runs"))
            .is_ok_and(|mut runs| runs.any(|run| run.is_ok_and(|run| run.path().join("events.jsonl").is_file())))
    });
    for end in ["q", "\u{3}", "TERM"] {
        let mut terminal = Terminal::start(&command(&place, &["top", "latest"]), 100, 30);
        terminal.until("the run and its worker", |screen| screen.has("RUNNING") && screen.has("WORKERS 1"));
        assert!(terminal.screen.is_alternate());
        terminal.until("steps", |screen| screen.has("step ") && screen.has("epoch "));
        // Narrow and low: what is most wanted stays.
        terminal.resize(40, 12);
        terminal
            .until("the run in a small window", |screen| screen.rows()[0].contains("strange") && screen.has("q quit"));
        terminal.resize(100, 30);
        terminal.type_in("?");
        terminal.until("the keys", |screen| screen.has(" keys "));
        terminal.type_in("?");
        terminal.until("no keys", |screen| !screen.has(" keys "));
        match end {
            "TERM" => kill(Pid::from_raw(terminal.pid()), Signal::SIGTERM).unwrap(),
            key => terminal.type_in(key),
        }
        let (code, screen) = terminal.end();
        assert_eq!(code, Some(0), "{end}: {:?}", screen.all());
        assert!(screen.rows().iter().all(String::is_empty), "{end}: {:?}", screen.rows());
    }
    kill(Pid::from_raw(run.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    run.wait().unwrap();
}

#[test]
fn what_goes_elsewhere_is_not_drawn() {
    let place = place();
    let mut training = command(&place, &["train", "strange.toml", "--set", "train.epochs=2"]);
    let output = training.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    for text in [output.stdout, output.stderr] {
        assert!(!text.contains(&0x1b) && !text.contains(&b'\r'), "{}", String::from_utf8_lossy(&text));
    }
}
