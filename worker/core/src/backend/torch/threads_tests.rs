//! Our kernels on the CPU give the same bits on any number of threads, and wait for none that has nothing to do.

use super::safe::{
    self, CpuNorm, CpuNormBackward, DropoutParams, RetentionBackward, adamw, attention, attention_backward, dropout,
    gate, gate_backward, linear, linear_backward, norm, norm_backward, retention, retention_backward,
};
use enn_common::mix::spread;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use std::{
    cell::Cell,
    collections::BTreeSet,
    fs,
    hint::spin_loop,
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tch::{Device, Kind, Tensor};

/// Numbers that are the same each time: libtorch's own generator is one for all tests, and others draw from it at the same time.
fn random(shape: &[i64], drawn: &Cell<u64>) -> Tensor {
    let begin = drawn.get();
    let count = shape.iter().product::<i64>() as u64;
    drawn.set(begin + count);
    let number = |at: u64| (spread(at) % 4_000) as f32 / 1_000.0 - 2.0;
    Tensor::from_slice(&(begin..begin + count).map(number).collect::<Vec<f32>>()).reshape(shape)
}

/// Only one of these tests at a time starts helpers and ends them.
static HELPERS: Mutex<()> = Mutex::new(());

/// What is computed on so many threads.
fn on<T>(threads: i32, compute: impl FnOnce() -> T) -> T {
    let before = tch::get_num_threads();
    tch::set_num_threads(threads);
    let made = compute();
    tch::set_num_threads(before);
    made
}

/// Sizes of which no part is a multiple of another, each worth three threads.
fn all() -> Vec<Tensor> {
    let drawn = Cell::new(0);
    let random = |shape: &[i64]| random(shape, &drawn);
    let mut made = Vec::new();
    let x = random(&[4099, 130]);
    let w = random(&[101, 130]);
    let b = random(&[101]);
    let g = random(&[4099, 101]);
    for far in [false, true] {
        made.push(linear(&x, &w, Some(&b), far).unwrap());
    }
    let dw = w.zeros_like();
    let db = b.zeros_like();
    made.extend(linear_backward([&g, &x, &w], true, Some(&dw), Some(&db)).unwrap());
    made.extend([dw, db]);

    let [q, k, v] = [33, 41, 41].map(|tokens| random(&[37, 3, tokens, 19]));
    let [y, lse] = attention([&q, &k, &v], None, false).unwrap();
    made.extend(attention_backward([&q, &q, &k, &v, &y, &lse], None, false).unwrap());
    made.extend([y, lse]);

    let weight = random(&[130]);
    let bias = random(&[130]);
    let branch = random(&[4099, 130]);
    let whole =
        CpuNorm { x: &x, branch: Some(&branch), weight: Some(&weight), bias: Some(&bias), centred: true, eps: 1e-5 };
    let [sum, normed, mean, rstd] = <[Tensor; 4]>::try_from(norm(&whole).unwrap().collect::<Vec<_>>()).unwrap();
    let reverse =
        CpuNormBackward { g: &normed, x: &sum, mean: Some(&mean), rstd: &rstd, weight: Some(&weight), gsum: None };
    made.extend(norm_backward(&reverse).unwrap());
    made.extend([sum, normed, mean, rstd]);

    for other in [None, Some(&branch)] {
        let y = gate(&x, other).unwrap();
        made.extend(gate_backward(&y, &x, other).unwrap());
        made.push(y);
    }

    let v = random(&[67, 43, 3, 31]);
    let lambda = Tensor::from_slice(&[0.5_f32, 0.9, 0.99]);
    for both in [false, true] {
        let y = retention(&v, &lambda, None, both).unwrap();
        let reverse = RetentionBackward { v: &v, lambda: &lambda, y: &y, g: &v, state: None, gstate: None, both };
        made.extend(retention_backward(&reverse).unwrap());
        made.push(y);
    }

    let drop = DropoutParams { seed: 3, step: 5, site: 7, first: 11, threshold: 1 << 31, scale: 2.0 };
    made.push(dropout(&x, false, &drop).unwrap());

    let arrays = [(); 5].map(|()| random(&[400_003]).abs());
    let [p, g, m, v, average] = &arrays;
    let numbers = Tensor::from_slice(&[1.0_f32, 0.1, 0.01, 0.999, 0.001, 1.0]);
    adamw([p, g, m, v], Some((average, 0.25)), &numbers, true, 1e-8).unwrap();
    safe::average(&[average, p], 0.5).unwrap();
    made.push(Tensor::from(safe::global_norm(&[p, g]).unwrap()));
    safe::zero(&[g]).unwrap();
    made.extend(arrays);
    made
}

#[test]
fn kernels_give_the_same_bits_on_any_number_of_threads() {
    let _alone = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
    let _none = tch::no_grad_guard();
    let one = on(1, all);
    for threads in [2, 3, 7] {
        let more = on(threads, all);
        assert_eq!(more.len(), one.len());
        for (index, (more, one)) in more.iter().zip(&one).enumerate() {
            assert!(more.isfinite().all().int64_value(&[]) == 1, "result {index} is finite");
            assert!(more.equal(one), "result {index} on {threads} threads");
        }
    }
}

/// The shortest of some times that `compute` takes.
fn shortest(compute: impl Fn() -> Tensor) -> Duration {
    let time = || {
        let began = Instant::now();
        for _ in 0..20 {
            drop(compute());
        }
        began.elapsed()
    };
    (0..9).map(|_| time()).min().unwrap()
}

#[test]
fn products_stay_in_registers() {
    let _alone = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
    let _none = tch::no_grad_guard();
    let drawn = Cell::new(0);
    let x = random(&[2048, 64], &drawn);
    let w = random(&[160, 64], &drawn);
    let (ours, theirs) =
        on(1, || (shortest(|| linear(&x, &w, None, false).unwrap()), shortest(|| x.linear(&w, None::<&Tensor>))));
    // Sums that live in memory took six times as long as those of libtorch's library of products.
    assert!(ours < theirs * 3, "{ours:?} beside {theirs:?}");
}

/// The threads that help with loops, of all threads of this process.
fn helpers() -> BTreeSet<i32> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let helps = |name: String| name.trim_end() == "enn-loop";
    let tasks = tasks.filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(helps));
    tasks.map(|task| task.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect()
}

/// One of the processors that this thread may use.
fn a_processor() -> CpuSet {
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let last = (0..CpuSet::count()).rev().find(|cpu| all.is_set(*cpu).unwrap()).unwrap();
    let mut one = CpuSet::new();
    one.set(last).unwrap();
    one
}

/// Time of some loops that are worth two threads.
fn loops() -> Duration {
    // Nothing random: another test may draw at the same time.
    let x = Tensor::ones([4099, 130], (Kind::Float, Device::Cpu));
    let began = Instant::now();
    for _ in 0..100 {
        drop(gate(&x, Some(&x)).unwrap());
    }
    began.elapsed()
}

#[test]
fn a_helper_that_gets_no_processor_holds_nobody_up() {
    let _alone = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
    let one = a_processor();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let before = helpers();
        let threads = tch::get_num_threads();
        let alone = on(1, loops);
        tch::set_num_threads(2);
        loops();
        let own: Vec<i32> = helpers().difference(&before).copied().collect();
        assert!(!own.is_empty(), "no helper was started");
        for helper in own {
            sched_setaffinity(Pid::from_raw(helper), &one).unwrap();
            // Only when nobody else wants the processor; and somebody does.
            let idle = Command::new("chrt").args(["--idle", "--pid", "0", &helper.to_string()]).status();
            assert!(idle.unwrap().success());
        }
        scope.spawn(|| {
            sched_setaffinity(Pid::from_raw(0), &one).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                spin_loop();
            }
        });
        let starved = loops();
        is_over.store(true, Ordering::Relaxed);
        tch::set_num_threads(threads);
        // It waited for the helper ten times as long, where it waits for it.
        assert!(starved < alone * 8 + Duration::from_millis(500), "{starved:?} instead of {alone:?}");
    });
}
