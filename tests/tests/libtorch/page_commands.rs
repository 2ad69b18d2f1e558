//! Every command of `enn` that a page shows is run, in the order of the page, in a directory with tables, configurations, a script and two
//! trained runs; and what a page shows as output is what the commands print, up to numbers. `tests/src/blocks.rs` lists the comments that
//! except lines from this.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking, and what was run is printed")]
#![expect(clippy::disallowed_methods, reason = "the environment says which page, and where programs are")]

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use arrow_ipc::writer::StreamWriter;
use enn_tests::{
    blocks::{Block, Mark, simple_commands},
    launch::{Ended, end, enn},
    pages::{Page, pages, root},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{RecvTimeoutError, channel},
    },
    time::{Duration, Instant},
};

/// Pages at a time.
const THREADS: usize = 2;
const ROWS: usize = 120;
/// A line that is stopped prints its text within this time.
const PRINTED_WITHIN: Duration = Duration::from_secs(60);
/// Exit code of `enn cv` if the model is not better than the best baseline.
const CV_NOT_BETTER: i32 = 8;
/// The shop of the pages, with a model of the least size.
const SHOP: &str = r#"name = "shop"
[data]
files = ["2024.csv", "2025.csv"]
[data.rows]
row_id = "id"
features = ["price", "staff", { column = "day", kind = "time" }, { column = "city", kind = "category" }]
targets = ["sales", "visitors"]
[model]
d_model = 16
heads = 2
spatial_depth = 1
temporal_depth = 1
spatial_latents = 2
temporal_latents = 2
fuser_latents = 4
fuser_rounds = 1
collector_depth = 1
[[model.tasks]]
name = "day"
mode = "temporal"
depth = 1
tokens = 2
parent = "calendar"
[[model.tasks]]
name = "calendar"
reduction = "mean"
[train]
epochs = 2
batch = 32
threads = 1
[cluster]
nproc_per_node = 1
device = "cpu"
"#;
const SCRIPT: &str = "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n";

/// A directory in which commands of pages can be run.
struct World {
    dir: tempfile::TempDir,
}

impl World {
    /// Makes tables, configurations and a script, and trains two runs.
    fn template() -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap() };
        let path = |name: &str| world.dir.path().join(name);
        for (name, first, has_targets) in [
            ("2024.csv", 0, true),
            ("2025.csv", ROWS, true),
            ("new.csv", 2 * ROWS, false),
            ("today.csv", 3 * ROWS, true),
        ] {
            fs::write(path(name), table(first, has_targets)).unwrap();
        }
        fs::write(path("shop.toml"), SHOP).unwrap();
        fs::write(path("data.csv"), with_y(&table(0, true))).unwrap();
        fs::write(path("sales.csv"), series()).unwrap();
        fs::write(path("new.toml"), SHOP.replace("name = \"shop\"", "name = \"new\"")).unwrap();
        fs::write(path("train.py"), SCRIPT).unwrap();
        fs::copy(root().join("examples/weather/weather.toml"), path("weather.toml")).unwrap();
        fs::write(path("token"), "a token of the tests, which nobody else has\n").unwrap();
        fs::create_dir(path("home")).unwrap();
        std::os::unix::fs::symlink(root().join("examples"), path("examples")).unwrap();
        stream(&path("rows.arrows"));
        for line in ["enn train shop.toml --quiet --set name=other", "enn train shop.toml --quiet"] {
            let ended = world.run(line);
            assert_eq!(ended.code, Some(0), "{line}\n{}{}", ended.stdout, ended.stderr);
        }
        world
    }

    /// A copy, for the commands of one page.
    fn copy(&self) -> Self {
        let copy = Self { dir: tempfile::tempdir().unwrap() };
        let copied = Command::new("cp").arg("-a").arg(self.dir.path().join(".")).arg(copy.dir.path()).status();
        assert!(copied.unwrap().success());
        copy
    }

    fn command(&self, line: &str) -> Command {
        let programs = enn().parent().unwrap().to_path_buf();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(programs.clone()).chain(std::env::split_paths(&path))).unwrap();
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", line]).current_dir(self.dir.path()).env("PATH", path);
        command
            .env("ENN_WORKER", programs.join("enn-worker"))
            .env("ENN_RUNS", "runs")
            .env("HOME", self.dir.path().join("home"));
        for name in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "ENN_TOKEN"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, line: &str) -> Ended {
        end(self.command(line).spawn().unwrap())
    }

    /// Runs a line until it has printed a text, and then stops it.
    fn run_until(&self, line: &str, text: &str) -> Ended {
        let mut child = self.command(&format!("exec {line} 2>&1")).spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        let reader =
            std::thread::spawn(move || out.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line))));
        let deadline = Instant::now() + PRINTED_WITHIN;
        let mut printed = String::new();
        while !printed.contains(text) {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => printed.extend([line.as_str(), "\n"]),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let was_printed = printed.contains(text);
        let _gone = kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM);
        let code = child.wait().unwrap().code();
        reader.join().unwrap();
        printed.extend(lines.iter().flat_map(|line| [line, "\n".to_owned()]));
        let is_stopped = was_printed && matches!(code, Some(0 | 143));
        Ended { code: if is_stopped { Some(0) } else { Some(1) }, stdout: printed, stderr: format!("{code:?}") }
    }

    /// The first run of a folder whose name begins so; an empty text if there is none.
    fn run_named(&self, folder: &str, prefix: &str) -> String {
        let entries = fs::read_dir(self.dir.path().join(folder)).into_iter().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names.into_iter().find(|name| name.starts_with(prefix)).unwrap_or_default()
    }

    /// A line with names in place of the words in capitals.
    fn named(&self, line: &str) -> String {
        let (run, other) = (self.run_named("runs", "shop-"), self.run_named("runs", "other-"));
        let checkpoint = || {
            let folder = self.dir.path().join("runs").join(&run).join("checkpoints");
            let mut steps: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            steps.sort();
            steps.into_iter().rfind(|path| path.is_dir()).unwrap().display().to_string()
        };
        let mut text = String::new();
        for word in line.split(' ') {
            let named = match word {
                "RUN" => run.clone(),
                "OTHER" => other.clone(),
                "WHAT" | "SHARDS" => checkpoint(),
                "CONFIG" => "shop.toml".to_owned(),
                "FILE" => "token".to_owned(),
                word => word
                    .replace("s3://bucket", &format!("file://{}/bucket", self.dir.path().display()))
                    .replace("/NAME", &format!("/{}", self.run_named("bucket/runs", "shop-"))),
            };
            text.extend([if text.is_empty() { "" } else { " " }, &named]);
        }
        text
    }
}

/// A table of the shop.
fn table(first: usize, has_targets: bool) -> String {
    let mut text = format!("id,price,staff,day,city,month{}\n", if has_targets { ",sales,visitors" } else { "" });
    for row in first..first + ROWS {
        let drawn = enn_tests::data::mix(row as u64);
        let (price, staff, city) =
            (drawn % 90 + 10, drawn / 90 % 7 + 1, ["Rome", "Oslo", "Lima"][(drawn / 630 % 3) as usize]);
        let (month, day) = (row / 28 % 12 + 1, row % 28 + 1);
        let year = 2024 + row / 336;
        write!(text, "{row},{price},{staff},{year}-{month:02}-{day:02},{city},{month}").unwrap();
        if has_targets {
            write!(text, ",{},{}", 500 + 30 * staff - 2 * price + drawn % 13, 40 + 9 * staff + drawn % 5).unwrap();
        }
        text.push('\n');
    }
    text
}

/// A table with one more column, `y`.
fn with_y(table: &str) -> String {
    let mut text = String::new();
    for (row, line) in table.lines().enumerate() {
        let y = if row == 0 { "y".to_owned() } else { (enn_tests::data::mix(row as u64 * 7) % 100).to_string() };
        writeln!(text, "{line},{y}").unwrap();
    }
    text
}

/// Pieces sold in two shops, each day of a hundred.
fn series() -> String {
    let mut text = "shop,day,sold\n".to_owned();
    for (shop, day) in (0..2).flat_map(|shop| (0..100).map(move |day| (shop, day))) {
        let drawn = enn_tests::data::mix(day * 2 + shop) % 9;
        let (month, date) = (day / 28 + 1, day % 28 + 1);
        writeln!(text, "{},2024-{month:02}-{date:02},{}", ["Rome", "Oslo"][shop as usize], 20 + day % 7 + drawn)
            .unwrap();
    }
    text
}

/// Rows of the shop as a stream of Arrow.
fn stream(path: &Path) {
    let texts = |values: &[&str]| -> ArrayRef { std::sync::Arc::new(StringArray::from(values.to_vec())) };
    let numbers = |values: &[f64]| -> ArrayRef { std::sync::Arc::new(Float64Array::from(values.to_vec())) };
    let columns = [
        ("id", texts(&["900", "901"])),
        ("price", numbers(&[20.0, 30.0])),
        ("staff", numbers(&[2.0, 3.0])),
        ("day", texts(&["2025-03-01", "2025-03-02"])),
        ("city", texts(&["Rome", "Oslo"])),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = StreamWriter::try_new(File::create(path).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
}

/// Numbers, and names of runs, made equal; runs of spaces made one.
fn without_numbers(line: &str) -> String {
    let mut text = String::new();
    for word in line.split_whitespace() {
        let mut letters = word.chars().peekable();
        let mut kept = String::new();
        while let Some(letter) = letters.next() {
            let is_of_number = |other: char| other.is_ascii_digit() || matches!(other, '.' | ',' | ':');
            if kept.ends_with("0Z-") && letter.is_ascii_hexdigit() {
                // The last letters of a run's name.
                while letters.peek().is_some_and(|other| other.is_ascii_hexdigit()) {
                    letters.next();
                }
                kept.push('0');
            } else if letter.is_ascii_digit() {
                while letters.peek().is_some_and(|other| is_of_number(*other)) {
                    letters.next();
                }
                kept.push('0');
            } else {
                kept.push(letter);
            }
        }
        // A slow machine needs seconds for what another one does in milliseconds, and has another number of workers.
        let kept = match kept.as_str() {
            "workers" => "worker",
            "ms" | "min" => "s",
            kept => kept,
        };
        text.extend([if text.is_empty() { "" } else { " " }, kept]);
    }
    text
}

/// Lines of a page that a program did not print.
fn unprinted<'a>(shown: &'a str, printed: &str) -> Vec<&'a str> {
    let printed: Vec<String> = printed.lines().map(without_numbers).collect();
    let is_printed = |line: &&str| {
        let parts: Vec<String> = line.split('…').map(without_numbers).collect();
        parts.iter().all(String::is_empty)
            || printed.iter().any(|line| parts.iter().all(|part| line.contains(part.as_str())))
    };
    shown.lines().filter(|line| !is_printed(line)).collect()
}

/// Runs the commands of a page. Returns how many there were, and what went wrong.
fn run_page(page: &Page, blocks: &[Block], template: &World) -> (usize, Vec<String>) {
    let world = template.copy();
    let mut wrong = Vec::new();
    let mut printed = String::new();
    let mut count = 0;
    for block in blocks {
        if let Some(name) = block.file() {
            fs::write(world.dir.path().join(name), &block.text).unwrap();
        }
        if block.marks.contains(&Mark::Output) {
            let lines = unprinted(&block.text, &printed);
            if !lines.is_empty() {
                let place = page.at(block.line);
                wrong.push(format!("{place}: these lines are not printed:\n{}\nbut:\n{printed}", lines.join("\n")));
            }
            printed.clear();
        }
        let commands = if block.is_shell() { block.commands() } else { Vec::new() };
        for (at, line) in commands {
            if block.why_not_run(&line).is_some() || !is_run_here(&line) {
                continue;
            }
            let text = world.named(&line);
            let began = Instant::now();
            let ended = match block.until(&line) {
                Some(until) => world.run_until(&text, until),
                None => world.run(&text),
            };
            println!("{:6.2} s  {}: {line}", began.elapsed().as_secs_f64(), page.at(at));
            count += 1;
            // Whether a model of the least size is better than the baselines is no matter of the page.
            let is_done = ended.code == Some(0) || (line.starts_with("enn cv ") && ended.code == Some(CV_NOT_BETTER));
            if is_done == block.fails(&line) {
                let place = page.at(at);
                wrong.push(format!("{place}: {text} ended with {:?}\n{}{}", ended.code, ended.stdout, ended.stderr));
            }
            printed.extend([ended.stdout, ended.stderr]);
        }
    }
    (count, wrong)
}

/// Whether a line is one of `enn`, and not of make, cargo or torchrun.
fn is_run_here(line: &str) -> bool {
    let words = simple_commands(line);
    words.iter().all(|words| matches!(words[0], "enn" | "grep" | "cut" | "sed" | "cat" | "head"))
}

#[test]
fn every_command_of_a_page_is_run() {
    let template = World::template();
    let asked = std::env::var("ENN_PAGE").unwrap_or_default();
    let pages: Vec<(Page, Vec<Block>)> = pages()
        .into_iter()
        .filter(|page| page.path.to_str().unwrap().contains(&asked))
        .map(|page| {
            let blocks = page.blocks().unwrap();
            (page, blocks)
        })
        .collect();
    let next = AtomicUsize::new(0);
    let found = Mutex::new((0, Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some((page, blocks)) = pages.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (count, wrong) = run_page(page, blocks, &template);
                    let mut found = found.lock().unwrap();
                    found.0 += count;
                    found.1.extend(wrong);
                }
            });
        }
    });
    let (count, wrong) = found.into_inner().unwrap();
    println!("{count} commands of pages were run");
    assert!(wrong.is_empty(), "{} commands of pages went wrong:\n{}", wrong.len(), wrong.join("\n\n"));
    assert!(!asked.is_empty() || count > 50, "only {count} commands were run");
}

#[test]
fn shown_output_may_differ_in_numbers_alone() {
    let printed = "08:30:12 train noon-20261129T083012Z-0f1c: 1 worker\nepoch 12  loss 0.01  val MAE 2.98 °F (best)\n";
    for shown in
        ["train noon-20250101T000000Z-beef: 1 worker", "epoch 1 loss 3 val MAE 1 °F (best)", "epoch …(best)", "…", ""]
    {
        assert!(unprinted(shown, printed).is_empty(), "{shown}");
    }
    for shown in ["train noon-20250101T000000Z-beef: one worker", "epoch 1 loss 3 val MSE", "rows …(best)"] {
        assert_eq!(unprinted(shown, printed), [shown]);
    }
}
