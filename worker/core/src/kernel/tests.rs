//! Kernels that misbehave, each survived: what the manager returns, remembers and tells.

use super::*;
use crate::op::row::{Launched, Tolerance};
use crate::op::{self, Binary, Unary};
use enn_common::kernels::{COOL_DOWN_STEPS, Fault, KernelBook, Quarantined};
use smallvec::smallvec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

const EXP: Op = Op::Unary(Unary::Exp);

thread_local! {
    /// Launches of the kernels below.
    static LAUNCHES: Cell<u32> = const { Cell::new(0) };
    /// While set, `flaky` is right.
    static HEALTHY: Cell<bool> = const { Cell::new(false) };
}

fn launched() -> u32 {
    LAUNCHES.with(Cell::get)
}

fn fits(_: &Op, _: &Launch<'_>) -> Result<(), &'static str> {
    Ok(())
}

fn right(_: &Op, l: &Launch<'_>) -> Launched {
    LAUNCHES.with(|n| n.set(n.get() + 1));
    Ok(smallvec![l.at(0).f_exp()?])
}

fn percent(op: &Op, l: &Launch<'_>) -> Launched {
    Ok(smallvec![right(op, l)?[0].f_mul_scalar(1.01)?])
}

fn nan(op: &Op, l: &Launch<'_>) -> Launched {
    let made = right(op, l)?.remove(0);
    let _ = made.f_view(-1)?.f_narrow(0, 0, 1)?.f_fill_(f64::NAN)?;
    Ok(smallvec![made])
}

fn fails(_: &Op, _: &Launch<'_>) -> Launched {
    LAUNCHES.with(|n| n.set(n.get() + 1));
    Err(OpErrorKind::NotDifferentiable)
}

fn random(op: &Op, l: &Launch<'_>) -> Launched {
    let noise = 1.0 + f64::from(launched() % 2) * 2e-7;
    Ok(smallvec![right(op, l)?[0].f_mul_scalar(noise)?])
}

fn flaky(op: &Op, l: &Launch<'_>) -> Launched {
    if HEALTHY.with(Cell::get) { right(op, l) } else { nan(op, l) }
}

/// Writes too much into the operand that it adds to.
fn add_wrong(_: &Op, l: &Launch<'_>) -> Launched {
    let _ = l.at(0).shallow_clone().f_add_(&l.at(1).f_mul_scalar(2.0)?)?;
    Ok(smallvec![])
}

const fn kernel(id: &'static str, launch: fn(&Op, &Launch<'_>) -> Launched) -> Kernel {
    Kernel { id, fits, launch, tolerance: Tolerance::Rounding, deterministic: true }
}

static RIGHT: Kernel = kernel("test.right", right);
static PERCENT: Kernel = kernel("test.percent", percent);
static NAN: Kernel = kernel("test.nan", nan);
static FAILS: Kernel = kernel("test.fails", fails);
static RANDOM: Kernel = kernel("test.random", random);
static FLAKY: Kernel = kernel("test.flaky", flaky);
static FREE: Kernel = Kernel { deterministic: false, ..kernel("test.free", right) };
static PICKY: Kernel = Kernel { fits: |_, _| Err("never"), ..kernel("test.picky", right) };
static PERCENT_SUM: Kernel =
    kernel("test.percent_sum", |_, l| Ok(smallvec![l.at(0).f_add(l.at(1))?.f_mul_scalar(1.01)?]));
static SUM: Kernel = kernel("test.sum", |_, l| Ok(smallvec![l.at(0).f_add(l.at(1))?]));
static ADD_WRONG: Kernel = kernel("test.add", add_wrong);

fn manager(kernels: &[&'static Kernel]) -> Manager {
    let extras = kernels.iter().map(|kernel| Extra { op: "exp", kernel }).collect();
    Manager::new(Settings::default(), extras, Box::new(NoIntents)).unwrap()
}

fn x() -> Tensor {
    tch::manual_seed(1);
    Tensor::randn([5, 7], (Kind::Float, Device::Cpu))
}

fn run(manager: &Manager) -> &'static str {
    let x = x();
    let (outs, id) = manager.launch(&EXP, &Launch { ins: &[&x] }).unwrap();
    assert!(outs[0].equal(&x.exp()), "{id} gave other numbers than the reference");
    id
}

fn faults(manager: &Manager) -> Vec<KernelFaultOf> {
    let of = |events| match events {
        KernelEvent::Faulted(fault) => KernelFaultOf(fault.kernel, fault.fault),
        KernelEvent::Recovered { kernel, .. } => KernelFaultOf(kernel.to_owned(), Fault::NonFinite),
    };
    manager.take_events().into_iter().map(of).collect()
}

#[derive(Debug, PartialEq)]
struct KernelFaultOf(String, Fault);

#[test]
fn a_right_kernel_is_checked_once_and_then_runs_alone() {
    let manager = manager(&[&RIGHT]);
    assert_eq!(run(&manager), "test.right");
    let checked = launched();
    assert_eq!(checked, 2, "once for the call, once for equal bits");
    assert_eq!(run(&manager), "test.right");
    assert_eq!(launched(), checked + 1);
    let calls = manager.take_calls();
    let exp = calls.iter().find(|op| op.op == "exp").unwrap();
    assert_eq!((exp.ran["test.right"].calls, exp.ran["test.right"].checked), (2, 1));
    assert_eq!(exp.order, ["test.right", "plain"]);
    assert!(manager.take_calls().is_empty() && manager.take_events().is_empty());
}

#[test]
fn wrong_numbers_never_leave_and_quarantine_the_kernel_at_once() {
    type Case = (&'static Kernel, fn(&Fault) -> bool);
    let wrong = |fault: &Fault| matches!(fault, Fault::Wrong { .. });
    let cases: [Case; 3] =
        [(&PERCENT, wrong), (&NAN, |fault| *fault == Fault::NonFinite), (&RANDOM, |fault| *fault == Fault::Unstable)];
    for (kernel, expected) in cases {
        let manager = manager(&[kernel, &RIGHT]);
        assert_eq!(run(&manager), "plain", "{}", kernel.id);
        let told = faults(&manager);
        assert!(told.len() == 1 && told[0].0 == kernel.id && expected(&told[0].1), "{told:?}");
        assert_eq!(run(&manager), "test.right", "the next kernel takes over");
        assert!(faults(&manager).is_empty());
    }
}

#[test]
fn a_launch_that_fails_falls_back_and_the_third_one_is_the_last() {
    let manager = manager(&[&FAILS]);
    for call in 0..5 {
        assert_eq!(run(&manager), "plain");
        assert_eq!(launched(), (call + 1).min(3));
        assert_eq!(faults(&manager).len(), usize::from(call == 2));
    }
    let calls = manager.take_calls();
    let exp = calls.iter().find(|op| op.op == "exp").unwrap();
    assert_eq!(exp.ran["plain"].calls, 5);
    assert_eq!((exp.passed_over["test.fails: launch failed"], exp.passed_over["test.fails: in quarantine"]), (3, 2));
}

#[test]
fn where_the_reference_fails_too_no_kernel_is_blamed() {
    let manager = manager(&[&FAILS]);
    let x = Tensor::zeros([2], (Kind::Float, Device::Cpu));
    let extra = Extra { op: "add", kernel: &FAILS };
    let add = Manager::new(Settings::default(), vec![extra], Box::new(NoIntents)).unwrap();
    let other = Tensor::zeros([3], (Kind::Float, Device::Cpu));
    for _ in 0..4 {
        assert!(add.launch(&Op::Binary(Binary::Add), &Launch { ins: &[&x, &other] }).is_err());
    }
    assert!(add.take_events().is_empty() && manager.take_events().is_empty());
}

#[test]
fn after_the_cool_down_a_kernel_is_tried_beside_the_reference() {
    let manager = manager(&[&FLAKY]);
    HEALTHY.with(|healthy| healthy.set(false));
    assert_eq!(run(&manager), "plain");
    assert_eq!(faults(&manager).len(), 1);
    manager.set_step(COOL_DOWN_STEPS - 1);
    let before = launched();
    assert_eq!((run(&manager), launched()), ("plain", before));
    // Still wrong at the first try: twice as long.
    manager.set_step(COOL_DOWN_STEPS);
    assert_eq!((run(&manager), faults(&manager).len()), ("plain", 1));
    manager.set_step(3 * COOL_DOWN_STEPS - 1);
    HEALTHY.with(|healthy| healthy.set(true));
    assert_eq!(run(&manager), "plain");
    manager.set_step(3 * COOL_DOWN_STEPS);
    assert_eq!(run(&manager), "test.flaky");
    let events = manager.take_events();
    assert!(
        matches!(&events[..], [KernelEvent::Recovered { kernel: "test.flaky", step, .. }] if *step == 3 * COOL_DOWN_STEPS)
    );
}

fn always_slow(_: &Kernel, _: &Op, _: &Launch<'_>) -> Result<Option<Fault>, OpErrorKind> {
    Ok(Some(Fault::Slow { found: "2 ms, 1 ms".into() }))
}

#[test]
fn a_slow_kernel_runs_until_all_ranks_leave_it_out() {
    let slow = manager(&[&RIGHT]);
    slow.clock.set(Some(always_slow));
    assert_eq!([run(&slow), run(&slow)], ["test.right"; 2]);
    let mut told: Vec<_> = slow.take_events().into_iter().filter_map(KernelEvent::into_fault).collect();
    assert!(matches!(&told[..], [fault] if matches!(fault.fault, Fault::Slow { .. })), "{told:?}");
    let mut book = KernelBook::default();
    book.enter(told.remove(0), "build").unwrap();
    slow.receive(&book.quarantined());
    assert_eq!(run(&slow), "test.right");
    slow.advance();
    assert_eq!(run(&slow), "plain");
    slow.set_step(COOL_DOWN_STEPS);
    assert_eq!((run(&slow), faults(&slow).len()), ("test.right", 1), "it is timed again");
}

#[test]
fn what_is_configured_or_repeats_exactly_is_not_timed() {
    let order = [("exp".to_owned(), vec!["test.right".to_owned()])].into();
    let ways = [
        Settings { order, ..Settings::default() },
        Settings { deterministic: true, ..Settings::default() },
        Settings::default(),
    ];
    for (settings, timed) in ways.into_iter().zip([false, false, true]) {
        let extra = Extra { op: "exp", kernel: &RIGHT };
        let manager = Manager::new(settings, vec![extra], Box::new(NoIntents)).unwrap();
        manager.clock.set(Some(always_slow));
        if timed {
            assert_eq!(manager.untimed(|| run(&manager)), "test.right");
        }
        assert_eq!(run(&manager), "test.right");
        assert!(manager.take_events().is_empty());
    }
}

#[test]
fn an_agreed_quarantine_waits_for_its_epoch() {
    let faulty = manager(&[&NAN]);
    run(&faulty);
    let Some(KernelEvent::Faulted(fault)) = faulty.take_events().pop() else { panic!("no fault") };
    let mut book = KernelBook::default();
    book.enter(enn_common::kernels::KernelFault { kernel: "test.right".into(), ..fault }, "b");
    let other = manager(&[&RIGHT]);
    assert_eq!(run(&other), "test.right");
    other.receive(&book.quarantined());
    assert_eq!((run(&other), other.is_waiting(), other.epoch()), ("test.right", true, 0));
    other.advance();
    assert_eq!((run(&other), other.is_waiting(), other.epoch()), ("plain", false, 1));
    // A worker that starts later has it from its first call.
    let late = manager(&[&RIGHT]);
    late.begin(&book.quarantined());
    assert_eq!((run(&late), late.epoch()), ("plain", 1));
    late.receive(&Quarantined::default());
    assert!(!late.is_waiting());
}

#[test]
fn what_is_written_in_place_is_put_right() {
    let extra = Extra { op: "grad_add", kernel: &ADD_WRONG };
    let manager = Manager::new(Settings::default(), vec![extra], Box::new(NoIntents)).unwrap();
    let sum = Tensor::ones([4], (Kind::Float, Device::Cpu));
    let more = Tensor::ones([4], (Kind::Float, Device::Cpu));
    let (_, id) = tch::no_grad(|| manager.launch(&Op::GradAdd(op::GradAdd), &Launch { ins: &[&sum, &more] }).unwrap());
    assert_eq!((id, sum.double_value(&[0]), faults(&manager).len()), ("plain", 2.0, 1));
}

#[test]
fn order_determinism_and_fitness_are_obeyed() {
    let extras: Vec<Extra> = [&PICKY, &FREE, &RIGHT].map(|kernel| Extra { op: "exp", kernel }).into();
    let with = |order: &[&str], deterministic| {
        let order = order.iter().map(ToString::to_string).collect::<Vec<_>>();
        let order = if order.is_empty() { [].into() } else { [("exp".to_owned(), order)].into() };
        Manager::new(Settings { order, deterministic }, extras.clone(), Box::new(NoIntents))
    };
    assert_eq!(run(&with(&[], false).unwrap()), "test.free");
    assert_eq!(run(&with(&[], true).unwrap()), "test.right");
    assert_eq!(run(&with(&["right", "free"], false).unwrap()), "test.right");
    assert_eq!(run(&with(&["picky", "plain", "right"], false).unwrap()), "plain");
    let error = with(&["flash"], false).err().unwrap().to_string();
    assert!(error.contains("kernels.exp: \"flash\"") && error.contains("test.picky, test.free"), "{error}");
    let order = [("atention".to_owned(), vec!["plain".to_owned()])].into();
    let error = Manager::new(Settings { order, deterministic: false }, extras, Box::new(NoIntents)).err().unwrap();
    assert!(error.to_string().contains("kernels.atention") && error.to_string().contains("exp"), "{error}");
}

/// Writes down what is opened and closed.
#[derive(Clone, Default)]
struct Notes(Rc<RefCell<Vec<String>>>);

impl Intents for Notes {
    fn open(&self, intent: &Intent) {
        self.0.borrow_mut().push(format!("{} {} {}", intent.op, intent.kernel, intent.operands));
    }

    fn close(&self) {
        self.0.borrow_mut().push("closed".into());
    }
}

#[test]
fn an_intent_stands_around_the_first_launch_only() {
    let notes = Notes::default();
    let extras = vec![Extra { op: "exp", kernel: &RIGHT }];
    let manager = Manager::new(Settings::default(), extras, Box::new(notes.clone())).unwrap();
    run(&manager);
    run(&manager);
    assert_eq!(*notes.0.borrow(), ["exp test.right f32[5,7]", "closed"]);
}

#[test]
fn many_signatures_are_forgotten_and_checked_again() {
    let manager = manager(&[&RIGHT]);
    for width in 1..=5000 {
        let x = Tensor::zeros([width], (Kind::Float, Device::Cpu));
        assert_eq!(manager.launch(&EXP, &Launch { ins: &[&x] }).unwrap().1, "test.right");
    }
    let calls = manager.take_calls();
    assert_eq!(calls.iter().find(|op| op.op == "exp").unwrap().ran["test.right"].calls, 5000);
}

/// The kernel that the manager chose while it was healthy, then a replay while it is not.
#[test]
fn a_replay_accuses_the_kernel_the_data_or_the_numbers() {
    let manager = manager(&[&FLAKY]);
    HEALTHY.with(|healthy| healthy.set(true));
    assert_eq!(run(&manager), "test.flaky");
    // Record 0 reads the leaf, record 1 masks it away, record 2 reads what record 0 made.
    let replay = |x: &Tensor, end: usize| {
        let bisect = Bisect::new(&manager);
        let zeros = x.zeros_like();
        let made = bisect.launch(&Op::Binary(Binary::Add), &Launch { ins: &[x, &zeros] }).unwrap().0.remove(0);
        bisect.launch(&Op::Where(op::Where), &Launch { ins: &[&x.isfinite(), x, &zeros] }).unwrap();
        bisect.launch(&EXP, &Launch { ins: &[&made] }).unwrap();
        bisect.finding([end], |record| if record == 2 { vec![Some(0)] } else { vec![None; 3] })
    };
    assert_eq!(replay(&x(), 2), None);
    let data = x();
    let _ = data.get(3).get(2).fill_(f64::NAN);
    let rows = NonfiniteRows { first: vec![3], total: 1, of: 5 };
    assert_eq!(replay(&data, 1), None, "a mask removed it");
    let cause = Cause::Operand { operand: 0, rows: rows.clone() };
    assert_eq!(replay(&data, 2), Some(Finding { record: 0, op: "add", cause }));
    let data = x();
    let _ = data.get(3).get(2).fill_(1e4);
    assert_eq!(replay(&data, 2), Some(Finding { record: 2, op: "exp", cause: Cause::Result { rows } }));
    assert!(manager.take_events().is_empty());
    HEALTHY.with(|healthy| healthy.set(false));
    let found = replay(&x(), 2).unwrap();
    assert!(matches!(&found.cause, Cause::Kernel(fault) if fault.kernel == "test.flaky"), "{found:?}");
    assert_eq!((found.record, run(&manager), faults(&manager).len()), (2, "plain", 1));
}

/// Where the reference itself overflows, another place of a NaN is no proof; the kernel is compared again on better numbers.
#[test]
fn a_difference_where_numbers_are_not_finite_accuses_nobody() {
    let manager = manager(&[&NAN]);
    let large = x();
    let mut odd = 0;
    let _ = large.get(3).get(2).fill_(1e4);
    for _ in 0..40 {
        let before = launched();
        let (outs, id) = manager.launch(&EXP, &Launch { ins: &[&large] }).unwrap();
        assert!(outs[0].equal(&large.exp()) && id == "plain");
        odd += u32::from(launched() > before);
    }
    assert!((2..40).contains(&odd), "compared {odd} times: again, but not for ever");
    assert!(manager.take_events().is_empty());
    let generation = manager.generation();
    manager.set_step(COOL_DOWN_STEPS);
    assert!(manager.generation() > generation, "records with the reference in them are made anew");
    assert_eq!((run(&manager), faults(&manager).len()), ("plain", 1));
}

/// Zeros say nothing: 1 % of them is nothing.
#[test]
fn a_comparison_with_zeros_only_does_not_clear_a_kernel() {
    let extra = Extra { op: "add", kernel: &PERCENT_SUM };
    let manager = Manager::new(Settings::default(), vec![extra], Box::new(NoIntents)).unwrap();
    let zeros = Tensor::zeros([4], (Kind::Float, Device::Cpu));
    let add = |x: &Tensor| {
        let (outs, id) = manager.launch(&Op::Binary(Binary::Add), &Launch { ins: &[x, &zeros] }).unwrap();
        assert!(outs[0].equal(x), "{id}");
        id
    };
    assert_eq!(add(&zeros), "plain");
    assert_eq!((add(&zeros.ones_like()), faults(&manager).len()), ("plain", 1));
}

/// What a first step full of zeros put off and the second one settled leaves nothing to do later.
#[test]
fn a_comparison_that_was_settled_voids_no_record_later() {
    let extra = Extra { op: "add", kernel: &SUM };
    let manager = Manager::new(Settings::default(), vec![extra], Box::new(NoIntents)).unwrap();
    let zeros = Tensor::zeros([4], (Kind::Float, Device::Cpu));
    let add = |x: &Tensor| manager.launch(&Op::Binary(Binary::Add), &Launch { ins: &[x, &zeros] }).unwrap().1;
    assert_eq!(add(&zeros), "plain");
    let other = Tensor::zeros([5], (Kind::Float, Device::Cpu));
    manager.launch(&Op::Binary(Binary::Add), &Launch { ins: &[&other, &other] }).unwrap();
    manager.set_step(1);
    assert_eq!((add(&zeros.ones_like()), add(&zeros)), ("test.sum", "test.sum"));
    let generation = manager.generation();
    manager.set_step(COOL_DOWN_STEPS - 1);
    assert_eq!(manager.generation(), generation);
    manager.set_step(COOL_DOWN_STEPS);
    assert_eq!(manager.generation(), generation + 1, "the other operands are compared again");
    manager.set_step(3 * COOL_DOWN_STEPS);
    assert_eq!(manager.generation(), generation + 1, "once");
}
