//! A program with faults of its own, for the tests of what is said of them: `faulty main | thread | library | isolated | isolating`.

#![expect(clippy::print_stdout, clippy::panic, reason = "it is part of tests")]

use enn_common::panics;
use std::{env, sync::mpsc, thread};

fn main() {
    panics::install("faulty");
    match env::args().nth(1).as_deref() {
        Some("main") => panic!("the main thread has a \u{1b}[2Jfault"),
        Some("thread") => {
            // Nobody but the thread could end this wait.
            let (keep, wait) = mpsc::channel::<()>();
            thread::spawn(|| panic!("a thread has a fault"));
            let _never = wait.recv();
            drop(keep);
        }
        Some("library") => {
            let found = panics::caught("numbers", || -> u8 { panic!("no such number") });
            println!("{}", found.map_or_else(|panic| panic.to_string(), |number| number.to_string()));
        }
        Some("isolated") => {
            let faulty = thread::spawn(|| {
                panics::isolate_thread();
                panic!("a task has a fault")
            });
            println!("{} {}", faulty.join().is_err(), panics::happened());
        }
        Some("isolating") => {
            // As where a server's own loop panics, and somebody waits for signals.
            let (keep, wait) = mpsc::channel::<()>();
            thread::spawn(|| panics::isolating(|| panic!("a server has a fault")));
            let _never = wait.recv();
            drop(keep);
        }
        other => println!("found {other:?}, expected main, thread, library, isolated or isolating"),
    }
}
