//! Whole runs of `enn train` whose workers have a kernel that misbehaves: each ends as if the kernel were not there.
//!
//! The worker is this test binary started again (`worker`, through a script), with one kernel of its own added to `linear`: what
//! a user's own worker program may do. Needs `enn` and `enn-worker`, which `make build` makes.

#![expect(clippy::unwrap_used, reason = "a test ends where something is wrong")]
#![expect(clippy::print_stderr, reason = "a test says what it skips")]
#![expect(clippy::disallowed_methods, reason = "the environment is how a test names its child's part")]

use crate::again;
use enn_broker::tcpstore::{Limits, serve};
use enn_common::event::{Event, EventKind};
use enn_common::kernels::{Fault, KernelBook};
use enn_worker::{
    autograd::{Cx, Mode, Tensor as Value},
    error::{OpError, OpErrorKind},
    functional,
    kernel::{Extra, Settings},
    layer::Linear,
    op::{
        Op,
        row::{Kernel, Launch, Launched, Tolerance},
    },
    optim::AdamWSettings,
    params::ParamBuilder,
    session::{
        Own,
        boot::Environment,
        precision::Demand,
        run_with,
        steps::{Setup, Steps, WantedPrecision},
        torchrun::{DeviceChoice, Member, join},
    },
};
use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Once,
    thread,
    time::{Duration, Instant},
};
use tch::{Device, Kind, Tensor};

/// Which kernel the child adds, and a file that says that a fault of one time has been.
const PART: &str = "ENN_TEST_KERNEL";
const ONCE: &str = "ENN_TEST_KERNEL_ONCE";
/// Where a rank of a loop of its own says what it found, and which loop it is.
const RANKS_OUT: &str = "ENN_TEST_RANK";
const LOOP: &str = "ENN_TEST_LOOP";
/// How long the ranks of such a loop may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Launches after which the late ones misbehave: in the second epoch.
const LATE: u32 = 400;
/// From the first launch to the end of a process that ends itself: steps are captured by then.
const BEFORE_DEATH: Duration = Duration::from_secs(4);

thread_local! {
    static LAUNCHES: Cell<u32> = const { Cell::new(0) };
}

fn fits(_: &Op, _: &Launch<'_>) -> Result<(), &'static str> {
    Ok(())
}

fn plain(op: &Op, l: &Launch<'_>) -> Launched {
    LAUNCHES.with(|n| n.set(n.get() + 1));
    (op.row().launch)(op, l)
}

fn spoilt(op: &Op, l: &Launch<'_>, spoil: impl Fn(&Tensor) -> Result<Tensor, tch::TchError>) -> Launched {
    let mut outs = plain(op, l)?;
    outs[0] = spoil(&outs[0])?;
    Ok(outs)
}

fn nan(op: &Op, l: &Launch<'_>) -> Launched {
    spoilt(op, l, |y| y.f_mul_scalar(f64::NAN))
}

fn percent(op: &Op, l: &Launch<'_>) -> Launched {
    spoilt(op, l, |y| y.f_mul_scalar(1.01))
}

fn late_nan(op: &Op, l: &Launch<'_>) -> Launched {
    if LAUNCHES.with(Cell::get) < LATE { plain(op, l) } else { nan(op, l) }
}

fn refuses(_: &Op, _: &Launch<'_>) -> Launched {
    Err(OpErrorKind::NotDifferentiable)
}

fn aborts(_: &Op, _: &Launch<'_>) -> Launched {
    std::process::abort()
}

/// Writes where it must not, once in the life of the run: into a weight, past libtorch's book-keeping.
fn poisons(op: &Op, l: &Launch<'_>) -> Launched {
    let outs = plain(op, l)?;
    let once = PathBuf::from(std::env::var(ONCE).unwrap());
    if LAUNCHES.with(Cell::get) >= LATE && !once.exists() {
        fs::write(once, "").unwrap();
        let _ = l.at(1).f_data()?.f_view(-1)?.f_narrow(0, 0, 1)?.f_fill_(f64::NAN)?;
    }
    Ok(outs)
}

/// Of all processes of the run the first ends itself, whatever its device is doing then.
fn dies(op: &Op, l: &Launch<'_>) -> Launched {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        thread::spawn(|| {
            thread::sleep(BEFORE_DEATH);
            if fs::File::create_new(std::env::var(ONCE).unwrap()).is_ok() {
                std::process::abort();
            }
        });
    });
    plain(op, l)
}

/// Has a device do much that nobody asked for.
fn slow(op: &Op, l: &Launch<'_>) -> Launched {
    let square = Tensor::f_ones([2048, 2048], (Kind::Float, l.at(0).device()))?;
    for _ in 0..4 {
        let _ = square.f_matmul(&square)?;
    }
    plain(op, l)
}

/// Reads where nothing is, which a device asserts: what a CUDA context does not survive.
fn corrupts(op: &Op, l: &Launch<'_>) -> Launched {
    let outs = plain(op, l)?;
    let nowhere = Tensor::f_full([1], 1_i64 << 30, (Kind::Int64, outs[0].device()))?;
    let _ = outs[0].f_index_select(0, &nowhere)?;
    Ok(outs)
}

const fn kernel(id: &'static str, launch: fn(&Op, &Launch<'_>) -> Launched) -> Kernel {
    Kernel { id, fits, launch, tolerance: Tolerance::Rounding, deterministic: true }
}

static KERNELS: [Kernel; 9] = [
    kernel("test.nan", nan),
    kernel("test.percent", percent),
    kernel("test.late_nan", late_nan),
    kernel("test.refuses", refuses),
    kernel("test.aborts", aborts),
    kernel("test.poisons", poisons),
    kernel("test.corrupts", corrupts),
    kernel("test.dies", dies),
    kernel("test.slow", slow),
];

/// The child: a worker of the user's own. As a test of its own it has nothing to do.
#[test]
fn worker() {
    let Ok(part) = std::env::var(PART) else { return };
    let kernel = KERNELS.iter().find(|kernel| kernel.id == part);
    let extras: Vec<Extra> = kernel.map(|kernel| Extra { op: "linear", kernel }).into_iter().collect();
    run_with(&Environment::read().unwrap(), &Own { kernels: extras, ..Own::default() }).unwrap();
}

/// Right on rank 0; on the other not, on batches of six rows.
fn one_sided(op: &Op, l: &Launch<'_>) -> Launched {
    let wrong = std::env::var("RANK").unwrap() != "0" && l.at(0).size()[0] == 6;
    if wrong { percent(op, l) } else { plain(op, l) }
}

static ONE_SIDED: Kernel = kernel("test.one_sided", one_sided);

/// Right on rank 0; on the other not finite from its 30th launch on.
fn turns(op: &Op, l: &Launch<'_>) -> Launched {
    let wrong = std::env::var("RANK").unwrap() != "0" && LAUNCHES.with(Cell::get) >= 30;
    if wrong { nan(op, l) } else { plain(op, l) }
}

static TURNS: Kernel = kernel("test.turns", turns);

/// What a loop of a user's own trains, with a kernel for `linear` or the plain reference only.
fn begin(place: &Member, kernel: Option<&'static Kernel>) -> (Linear, Steps) {
    let mut pb = ParamBuilder::new();
    let layer = Linear::unbiased(&mut pb, "layer", 4, 3);
    let order = kernel.map(|kernel| kernel.id.to_owned()).into_iter().chain(["plain".to_owned()]);
    let setup = Setup {
        seed: 7,
        optimizer: AdamWSettings { betas: (0.9, 0.95), weight_decay: 0.1, clip: 1.0 },
        precision: WantedPrecision::Fp32,
        demand: Demand { largest: 0.0, cells: 18 },
        kernels: Settings { order: BTreeMap::from([("linear".to_owned(), order.collect())]), deterministic: false },
        extras: kernel.map(|kernel| Extra { op: "linear", kernel }).into_iter().collect(),
        limit: Mode::Plan,
        profile: None,
    };
    (layer, Steps::new(pb, place, setup).unwrap())
}

/// One step of it on so many rows, whose loss is `loss` of what the layer gives; whether it was taken.
fn make(
    place: &Member,
    (layer, steps): (&Linear, &mut Steps),
    (number, rows): (u64, i64),
    loss: impl Fn(&Cx<'_>, &Value) -> Result<Value, OpError>,
) -> Result<bool, OpError> {
    let x = Tensor::ones([rows, 4], (Kind::Float, Device::Cpu)) * (number + 1) as f64;
    let numbers = Tensor::from_slice(&[12.0, 0.01]);
    let ran = steps.step(place, number, vec![x, numbers], |cx, parts, inputs| {
        let y = layer.forward(cx, &inputs[0])?;
        let loss = functional::sum_all(cx, &loss(cx, &y)?)?;
        parts.backward(cx, &loss, true)?;
        let norm = parts.complete(cx)?;
        let number = |i| functional::reshape(cx, &functional::narrow(cx, &inputs[1], 0, i, 1)?, &[]);
        let stats = parts.optimize(cx, &norm, &number(0)?, &number(1)?, None)?;
        Ok::<_, OpError>(vec![loss, stats.taken])
    })?;
    Ok(ran.outputs[1].double_value(&[]) == 1.0)
}

/// A training loop of a user's own, as one of two ranks: the kernel of `linear` in the record after each step, and how much was
/// agreed on after each.
fn one_is_wrong() -> Vec<String> {
    let place = join(DeviceChoice::Cpu).unwrap();
    let (layer, mut steps) = begin(&place, Some(&ONE_SIDED));
    let mut found = Vec::new();
    for number in 0..16 {
        let rows = if number < 4 { 4 } else { 6 };
        make(&place, (&layer, &mut steps), (number, rows), functional::square).unwrap();
        let plan = steps.executor.plan();
        let ran = plan
            .map_or("none", |plan| plan.program().recs().iter().find(|rec| rec.op.name() == "linear").unwrap().kernel);
        let ran = ran.to_owned();
        // Every fourth step, when the ranks meet anyway.
        let agreed = if number % 4 == 3 {
            steps.agree_on_kernels(place.group.as_ref(), place.device).unwrap()
        } else {
            Vec::new()
        };
        assert!(agreed.iter().all(|entry| entry.kernel == "test.one_sided" && entry.first_step == 4));
        found.push(format!("{ran} {}", agreed.len()));
    }
    place.leave().unwrap();
    found
}

/// The same, which makes a step again that was refused: its weights at the end, and what each rank was told of each refused step
/// and what all agreed on then.
fn one_turns(kernel: Option<&'static Kernel>) -> Vec<String> {
    let place = join(DeviceChoice::Cpu).unwrap();
    let (layer, mut steps) = begin(&place, kernel);
    let mut told = Vec::new();
    for number in 0..50 {
        while !make(&place, (&layer, &mut steps), (number, 4), functional::square).unwrap() {
            let agreed = steps.agree_on_kernels(place.group.as_ref(), place.device).unwrap();
            let agreed: Vec<String> = agreed.iter().map(|entry| entry.sentence()).collect();
            told.push(format!("{}; {}", steps.why_refused().unwrap_or_default(), agreed.join(", ")));
            assert!(told.len() < 5, "{told:?}");
        }
        assert_eq!(steps.why_refused(), None);
    }
    let weights = steps.weights.views(steps.weights.slabs()).into_iter();
    let weights: Vec<Vec<f32>> =
        weights.map(|(_, view)| Vec::try_from(view.detach().flatten(0, -1)).unwrap()).collect();
    place.leave().unwrap();
    [format!("{weights:?}")].into_iter().chain(told).collect()
}

/// Ranks whose code differs: what the first step says.
fn ranks_differ() -> Vec<String> {
    let place = join(DeviceChoice::Cpu).unwrap();
    let (layer, mut steps) = begin(&place, None);
    let made = make(&place, (&layer, &mut steps), (0, 4), |cx, y| {
        let y = functional::square(cx, y)?;
        if place.leads() { Ok(y) } else { functional::square(cx, &y) }
    });
    vec![made.unwrap_err().to_string()]
}

/// The part of a rank; as a test of its own it has nothing to do.
#[test]
fn rank() {
    let Ok(out) = std::env::var(RANKS_OUT) else { return };
    tch::set_num_threads(1);
    let lines = match std::env::var(LOOP).unwrap().as_str() {
        "one is wrong" => one_is_wrong(),
        "one turns" => one_turns(Some(&TURNS)),
        "none turns" => one_turns(None),
        "ranks differ" => ranks_differ(),
        other => panic!("no loop {other}"),
    };
    fs::write(out, lines.join("\n")).unwrap();
}

/// A rank that is killed when it takes too long, or the test ends.
struct Rank(Child);

impl Rank {
    fn ends_well(&mut self, deadline: Instant) {
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "a rank hangs");
            thread::park_timeout(Duration::from_millis(20));
        }
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lines of each of two ranks of a loop of a user's own.
fn two_ranks(which: &str) -> [Vec<String>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let store = serve((Ipv4Addr::LOCALHOST, 0).into(), Limits::default()).unwrap();
    let ranks = ["0", "1"].map(|rank| {
        let mut command = again::command(module_path!(), "rank");
        command.env("RANK", rank).env("WORLD_SIZE", "2").env("LOCAL_RANK", rank).env("LOCAL_WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", store.addr().port().to_string()).env(LOOP, which);
        Rank(command.env(RANKS_OUT, dir.path().join(rank)).stdout(Stdio::null()).spawn().unwrap())
    });
    let deadline = Instant::now() + PATIENCE;
    ranks.into_iter().for_each(|mut rank| rank.ends_well(deadline));
    ["0", "1"].map(|rank| {
        let text = fs::read_to_string(dir.path().join(rank)).unwrap();
        text.lines().map(ToOwned::to_owned).collect()
    })
}

#[test]
fn a_loop_of_ones_own_leaves_a_kernel_out_on_all_ranks_from_the_same_step() {
    let told = two_ranks("one is wrong");
    let told = told.each_ref().map(|lines| lines.iter().map(|line| line.split_once(' ').unwrap()).collect::<Vec<_>>());
    for lines in &told {
        let agreed: Vec<usize> = (0..16).filter(|&at| lines[at].1 == "1").collect();
        assert_eq!(agreed, [7], "{told:?}");
        // Two steps record anew; then there is a record, and it has the reference in it.
        assert_eq!(lines[8], ("none", "0"), "{told:?}");
        assert_eq!(lines[9..], [("plain", "0"); 7], "{told:?}");
    }
    // Until then only the rank that saw it did without.
    assert_eq!((told[0][3].0, told[1][3].0), ("test.one_sided", "test.one_sided"));
    assert_eq!((told[0][7].0, told[1][7].0), ("test.one_sided", "plain"));
}

#[test]
fn a_loop_of_ones_own_survives_a_kernel_that_turns_wrong_late_as_if_it_had_not_been_there() {
    let [expected, same] = two_ranks("none turns");
    assert!(expected == same && expected.len() == 1, "no step was refused: {expected:?}");
    let [right, wrong] = two_ranks("one turns");
    assert_eq!((&right[0], &wrong[0]), (&expected[0], &expected[0]), "the same bits");
    // One step was refused, by both; the rank whose kernel it was found it, and both left it out.
    assert_eq!((right.len(), wrong.len()), (2, 2), "{right:?} {wrong:?}");
    let (found, agreed) = wrong[1].split_once("; ").unwrap();
    assert!(found.contains("was refused because its gradient was not finite: linear at top"), "{found}");
    assert!(found.contains("kernel test.turns is not finite where the plain reference is, and is left out"), "{found}");
    assert!(agreed.starts_with("kernel test.turns of linear on ") && agreed.contains("is not finite"), "{agreed}");
    assert_eq!(right[1], format!("; {agreed}"));
}

#[test]
fn ranks_that_record_other_programs_all_hear_of_both() {
    let [one, other] = two_ranks("ranks differ");
    assert_eq!(one, other);
    let said = one.join("\n");
    assert!(said.contains("disagree on the recorded program") && said.contains("hint:"), "{said}");
    assert!(said.contains(" on rank 0") && said.contains(" on rank 1"), "{said}");
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

struct Ended {
    dir: tempfile::TempDir,
    run: PathBuf,
    events: Vec<EventKind>,
}

/// Trains the example on CPUs with workers that have the kernel `part`, to a good end.
fn train(part: &str, workers: u32) -> Ended {
    train_on("cpu", part, workers, &[])
}

/// What takes a kernel's place computes what it computed. A configured order is not given up for time.
fn order(part: &str) -> Option<String> {
    match part {
        "none" => Some("kernels.linear=[\"plain\"]".to_owned()),
        "test.slow" => None,
        _ => Some(format!("kernels.linear=[\"{part}\", \"plain\"]")),
    }
}

/// The program.
fn enn() -> PathBuf {
    let dir = std::env::var_os("ENN_BIN_DIR").map_or_else(|| root().join("target/release"), PathBuf::from);
    let binary = dir.join("enn");
    assert!(binary.exists(), "{} is not there; run `make build`", binary.display());
    binary
}

fn train_on(device: &str, part: &str, workers: u32, settings: &[&str]) -> Ended {
    let enn = enn();
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("worker.sh");
    let test = std::env::current_exe().unwrap();
    // The launcher looks in a worker's file for what it links, and for the release of libtorch that it is built for.
    let links = if cfg!(feature = "cuda") { "libtorch_cuda.so" } else { "libtorch_cpu.so" };
    let built_for = format!("enn-worker for libtorch {}", enn_worker::probe::libtorch_version());
    let test = test.display();
    let worker = again::name(module_path!(), "worker");
    let text =
        format!("#!/bin/sh\n# {links}, {built_for}\nexec '{test}' '{worker}' --exact --nocapture --test-threads 1\n");
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(enn)
        .current_dir(root())
        .args(["train", "examples/weather/weather.toml", "--quiet", "--device", device])
        .args(["--set", "train.epochs=3", "--set", "train.patience=0", "--set", "train.checkpoint_every=1"])
        .args(order(part).iter().flat_map(|order| ["--set", order]))
        // A launch that misbehaves late is one of training.
        .args(["--set", "train.calibration=off"])
        .args(settings.iter().flat_map(|setting| ["--set", setting]))
        .args(["--set", "train.threads=1", "--nproc-per-node", &workers.to_string()])
        .arg("--runs-dir")
        .arg(dir.path().join("runs"))
        .env("ENN_WORKER", &script)
        .env(PART, part)
        .env(ONCE, dir.path().join("once"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{part}: {said}");
    let mut runs = fs::read_dir(dir.path().join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let run = runs.find(|path| path.join("run.json").is_file()).unwrap();
    let journal = fs::read_to_string(run.join("events.jsonl")).unwrap();
    let events = journal.lines().map(|line| serde_json::from_str::<Event>(line).unwrap().what).collect();
    Ended { dir, run, events }
}

impl Ended {
    /// The last checkpoint's tensors, as bytes.
    fn weights(&self) -> Vec<u8> {
        let checkpoint = enn_common::checkpoint::latest(&self.run.join("checkpoints")).found.unwrap();
        let names: Vec<String> = checkpoint.tensor_names().map(ToOwned::to_owned).collect();
        names.iter().flat_map(|name| checkpoint.tensor(name).unwrap().bytes).collect()
    }

    fn book(&self) -> KernelBook {
        serde_json::from_slice(&fs::read(self.run.join("kernels.json")).unwrap()).unwrap()
    }

    fn rounds(&self) -> u64 {
        let mut rounds = self.events.iter().filter_map(|what| match what {
            EventKind::RunEnded { rounds, .. } => Some(*rounds),
            _ => None,
        });
        rounds.next_back().unwrap()
    }

    fn causes(&self) -> Vec<&str> {
        let causes = self.events.iter().filter_map(|what| match what {
            EventKind::RoundFailed { cause, .. } => Some(cause.as_str()),
            _ => None,
        });
        causes.collect()
    }

    /// What `enn kernels` prints.
    fn page(&self) -> String {
        let mut command = Command::new(enn());
        let output = command.args(["kernels"]).arg(&self.run).output().unwrap();
        assert!(output.status.success() && self.dir.path().exists());
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn kernels_that_are_wrong_or_refuse_change_no_bit() {
    let expected = train("none", 2).weights();
    for (part, fits) in [
        ("test.nan", (|fault| *fault == Fault::NonFinite) as fn(&Fault) -> bool),
        ("test.percent", |fault| matches!(fault, Fault::Wrong { .. })),
        ("test.refuses", |fault| matches!(fault, Fault::Launch { .. })),
    ] {
        let ended = train(part, 2);
        assert!(ended.weights() == expected, "{part}");
        let book = ended.book();
        assert_eq!((ended.rounds(), book.quarantine.len()), (1, 1), "{part}: {book:?}");
        let entry = &book.quarantine[0];
        assert!(entry.kernel == part && entry.sig.is_none() && fits(&entry.fault), "the whole kernel: {entry:?}");
        let linear = &book.ops["linear"];
        assert!(
            linear.ran.get(part).is_none_or(|calls| calls.calls == 0) && linear.ran["plain"].calls > 100,
            "{linear:?}"
        );
        assert!(ended.events.iter().any(|what| matches!(what, EventKind::KernelQuarantined { .. })));
        let page = ended.page();
        assert!(page.contains(&format!("tries {part}, plain")) && page.contains("in quarantine"), "{page}");
    }
}

#[test]
fn a_kernel_that_ends_the_process_is_not_tried_again() {
    let expected = train("none", 2).weights();
    let ended = train("test.aborts", 2);
    assert!(ended.weights() == expected);
    // The first crash takes the signature out, the second the kernel.
    assert_eq!(ended.rounds(), 3);
    let causes = ended.causes();
    assert!(
        causes[0].contains("SIGABRT") && causes[0].contains("in the first launch of kernel test.aborts of linear"),
        "{causes:?}"
    );
    let book = ended.book();
    assert!(matches!(&book.quarantine[..], [entry] if entry.sig.is_none() && entry.retry_at().is_none()), "{book:?}");
    assert!(ended.page().contains("until another build of the worker"), "{}", ended.page());
}

/// Without it two runs on a GPU need not have the same bits.
const REPEATABLE: &str = "train.deterministic=true";

/// Whether there are so many GPUs; says so if not.
fn there_are(gpus: i64) -> bool {
    let there = tch::Cuda::device_count() >= gpus;
    if !there {
        eprintln!("skipped: there are fewer GPUs than {gpus}");
    }
    there
}

#[test]
fn on_a_gpu_a_kernel_that_ruins_the_context_costs_a_restart_and_is_not_tried_again() {
    if !there_are(1) {
        return;
    }
    let expected = train_on("cuda", "none", 1, &[REPEATABLE]).weights();
    let ended = train_on("cuda", "test.corrupts", 1, &[REPEATABLE]);
    assert!(ended.weights() == expected);
    let causes = ended.causes();
    let book = ended.book();
    assert!((2..=3).contains(&ended.rounds()), "{causes:?}, {}", ended.page());
    assert!(causes.iter().all(|cause| cause.contains("test.corrupts")), "{causes:?}");
    assert!(book.quarantine.iter().any(|entry| entry.kernel == "test.corrupts"), "{book:?}");
}

#[test]
fn on_a_gpu_a_kernel_that_is_slow_is_passed_over() {
    if !there_are(1) {
        return;
    }
    // Every eighth step all ranks put one more quarantine in force.
    let ended = train_on("cuda", "test.slow", 1, &["train.epochs=60", "train.checkpoint_every=60"]);
    let book = ended.book();
    let slow = book.quarantine.iter().filter(|entry| entry.kernel == "test.slow").collect::<Vec<_>>();
    assert!(!slow.is_empty() && book.quarantine.len() == slow.len(), "no other is: {book:?}");
    assert!(slow.iter().all(|entry| matches!(entry.fault, Fault::Slow { .. })), "{book:?}");
    assert!(book.ops["linear"].passed_over.contains_key("test.slow: in quarantine"), "{book:?}");
    assert_eq!(ended.rounds(), 1);
    assert!(ended.page().contains("is slower than the plain reference: "), "{}", ended.page());
}

#[test]
fn on_two_gpus_sums_that_are_captured_are_those_that_are_not() {
    if !there_are(2) {
        return;
    }
    let apart = train_on("cuda", "none", 2, &[REPEATABLE, "cluster.collectives=\"nccl\""]);
    let captured = train_on("cuda", "none", 2, &[REPEATABLE, "train.capture_collectives=true"]);
    let warned = captured.events.iter().find(|what| matches!(what, EventKind::Warned { .. }));
    assert!(warned.is_none(), "{warned:?}");
    assert!(captured.weights() == apart.weights());
}

#[test]
fn on_two_gpus_a_rank_that_dies_in_captured_sums_costs_no_more_than_the_steps_since_a_checkpoint() {
    if !there_are(2) {
        return;
    }
    let captured = [REPEATABLE, "train.capture_collectives=true", "train.epochs=200"];
    let ended = train_on("cuda", "test.dies", 2, &captured);
    assert_eq!(ended.rounds(), 2, "{:?}", ended.causes());
    assert!(ended.weights() == train_on("cuda", "none", 2, &captured).weights());
}

#[test]
fn a_kernel_that_fails_late_costs_a_step_and_a_weight_that_is_lost_a_restart() {
    let ended = train("test.late_nan", 1);
    let skipped = ended.events.iter().filter_map(|what| match what {
        EventKind::EpochEnded(report) => Some(report.skipped),
        _ => None,
    });
    let skipped: u64 = skipped.sum();
    assert!((1..=4).contains(&skipped), "one step for each signature, at most: {skipped}");
    assert_eq!(ended.rounds(), 1);
    let told = ended.events.iter().any(|what| {
        matches!(what, EventKind::Warned { message } if message.contains("was refused") && message.contains("kernel test.late_nan"))
    });
    assert!(told, "{:?}", ended.events);
    assert!(ended.book().quarantine.iter().all(|entry| entry.fault == Fault::NonFinite));

    let ended = train("test.poisons", 1);
    assert_eq!(ended.rounds(), 2);
    assert!(
        ended.causes()[0].contains("weight ") && ended.causes()[0].contains("is not finite"),
        "{:?}",
        ended.causes()
    );
    assert!(ended.weights() == train("none", 1).weights());
}
