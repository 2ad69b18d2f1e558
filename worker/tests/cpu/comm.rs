//! Two and three real processes on one machine: reductions, and what survivors see when a peer dies or hangs.
//!
//! Every rank but 0 is this test binary started again (`child`, told who it is through the environment).

use crate::peer::{self, PATIENCE, Peer, connect, peer, store};
use enn_worker::comm::{CommError, Forming, Gloo, GlooOptions, ProcessGroup, Reduce, Solo, Store, StoreAddr};
use std::time::{Duration, Instant};
use tch::{Kind, Tensor};

/// Key that says that rank 0 has its group.
const FORMED: &str = "formed";

fn gloo(port: u16, rank: u32, size: u32, timeout: Duration) -> Result<Gloo, CommError> {
    Gloo::form(&connect(port, 0), &GlooOptions { rank, size, timeout }, &Forming::within(timeout))
}

#[test]
#[ignore = "the part of a peer; the other tests start it"]
fn child() {
    let Some((port, rank, size, word)) = peer::part() else { return };
    let group = gloo(port, rank, size, PATIENCE).unwrap();
    match word.as_str() {
        "reduce" => {
            let own = f64::from(rank + 1);
            for reduce in [Reduce::Sum, Reduce::Min, Reduce::Max] {
                group.all_reduce(&Tensor::from_slice(&[own, -own]), reduce).unwrap().wait(PATIENCE).unwrap();
            }
            let received = Tensor::zeros([3], (Kind::Int64, tch::Device::Cpu));
            group.broadcast(&received, 0).unwrap().wait(PATIENCE).unwrap();
            assert_eq!(Vec::<i64>::try_from(&received).unwrap(), [7, 8, 9]);
            for _ in 0..10 {
                let bucket = Tensor::ones([1 << 20], (Kind::Float, tch::Device::Cpu));
                group.all_reduce_sum(&bucket).unwrap().wait(PATIENCE).unwrap();
            }
            group.barrier(PATIENCE).unwrap();
            Box::new(group).shutdown(PATIENCE).unwrap();
        }
        "linger" => {
            group.barrier(PATIENCE).unwrap();
            // Until the test kills it.
            std::thread::park_timeout(PATIENCE);
        }
        "abort" => {
            // A group that ends while others still form it is another matter: they are told that it cannot be formed.
            connect(port, 0).get(FORMED).unwrap();
            let begun = group.all_reduce_sum(&Tensor::ones([1000], (Kind::Float, tch::Device::Cpu))).unwrap();
            Box::new(group).abort(PATIENCE).unwrap();
            drop(begun);
            std::thread::park_timeout(PATIENCE);
        }
        part => panic!("no part {part}"),
    }
}

#[test]
fn three_processes_reduce_broadcast_and_meet() {
    let store = store();
    let port = store.addr().port();
    let mut peers = [peer(module_path!(), port, 1, 3, "reduce"), peer(module_path!(), port, 2, 3, "reduce")];
    let group = gloo(port, 0, 3, PATIENCE).unwrap();
    assert_eq!((group.rank(), group.size(), group.backend()), (0, 3, "gloo"));
    for (reduce, expected) in [(Reduce::Sum, [6.0, -6.0]), (Reduce::Min, [1.0, -3.0]), (Reduce::Max, [3.0, -1.0])] {
        let tensor = Tensor::from_slice(&[1.0, -1.0]);
        let work = group.all_reduce(&tensor, reduce).unwrap();
        work.wait(PATIENCE).unwrap();
        assert!(work.is_done().unwrap());
        assert_eq!(Vec::<f64>::try_from(&tensor).unwrap(), expected, "{reduce:?}");
    }
    group.broadcast(&Tensor::from_slice(&[7i64, 8, 9]), 0).unwrap().wait(PATIENCE).unwrap();
    // Buckets in flight together, waited for afterwards, their handles outliving the tensors' last names.
    let buckets: Vec<Tensor> = (0..10).map(|_| Tensor::ones([1 << 20], (Kind::Float, tch::Device::Cpu))).collect();
    let works: Vec<_> = buckets.iter().map(|bucket| group.all_reduce_sum(bucket).unwrap()).collect();
    works.iter().for_each(|work| work.wait(PATIENCE).unwrap());
    for bucket in &buckets {
        assert_eq!(bucket.min().double_value(&[]), 3.0);
        assert_eq!(bucket.max().double_value(&[]), 3.0);
    }
    group.barrier(PATIENCE).unwrap();
    Box::new(group).shutdown(PATIENCE).unwrap();
    peers.iter_mut().for_each(Peer::ends_well);
}

#[test]
fn a_killed_peer_is_an_error_at_once() {
    let store = store();
    let port = store.addr().port();
    let mut peer = peer(module_path!(), port, 1, 2, "linger");
    let group = gloo(port, 0, 2, PATIENCE).unwrap();
    group.barrier(PATIENCE).unwrap();
    let tensor = Tensor::ones([1000], (Kind::Float, tch::Device::Cpu));
    let work = group.all_reduce_sum(&tensor).unwrap();
    peer.0.kill().unwrap();
    let killed = Instant::now();
    let error = work.wait(PATIENCE).unwrap_err();
    assert!(matches!(error, CommError::Collective { operation: "all_reduce", rank: 0, size: 2, .. }), "{error}");
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    let again = group.all_reduce_sum(&tensor).and_then(|work| work.wait(PATIENCE));
    assert!(matches!(again, Err(CommError::Collective { .. })), "{again:?}");
    let ending = Instant::now();
    Box::new(group).abort(Duration::from_secs(5)).unwrap();
    assert!(ending.elapsed() < Duration::from_secs(2), "{:?}", ending.elapsed());
}

#[test]
fn a_peer_that_aborts_is_missed_at_once_even_while_its_process_lives_on() {
    for late in [Duration::ZERO, Duration::from_millis(300)] {
        let store = store();
        let port = store.addr().port();
        let _peer = peer(module_path!(), port, 1, 2, "abort");
        let group = gloo(port, 0, 2, PATIENCE).unwrap();
        connect(port, 0).set(FORMED, b"").unwrap();
        // What the peer had begun was cut on its side: here it ends soon, well or badly. What it never comes to ends badly.
        std::thread::park_timeout(late);
        let tensor = Tensor::ones([1000], (Kind::Float, tch::Device::Cpu));
        let waiting = Instant::now();
        let _well_or_badly = group.all_reduce_sum(&tensor).and_then(|work| work.wait(PATIENCE));
        let error = group.all_reduce_sum(&tensor).and_then(|work| work.wait(PATIENCE)).unwrap_err();
        assert!(matches!(error, CommError::Collective { operation: "all_reduce", .. }), "{error}");
        assert!(waiting.elapsed() < Duration::from_secs(1), "{:?}", waiting.elapsed());
    }
}

#[test]
fn a_hanging_peer_is_an_error_at_the_deadline_and_does_not_hold_up_the_end() {
    let store = store();
    let port = store.addr().port();
    let _peer = peer(module_path!(), port, 1, 2, "linger");
    let group = gloo(port, 0, 2, PATIENCE).unwrap();
    group.barrier(PATIENCE).unwrap();
    // The peer never comes to this one.
    let work = group.all_reduce_sum(&Tensor::ones([10], (Kind::Float, tch::Device::Cpu))).unwrap();
    assert!(!work.is_done().unwrap());
    let begun = Instant::now();
    let error = work.wait(Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, CommError::TimedOut { operation: "all_reduce", .. }), "{error}");
    Box::new(group).abort(PATIENCE).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn a_peer_that_never_comes_is_an_error_at_the_deadline() {
    let store = store();
    let begun = Instant::now();
    let error = gloo(store.addr().port(), 0, 2, Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, CommError::Form { backend: "gloo", rank: 0, size: 2, .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn tensors_c10d_cannot_take_are_refused_by_name() {
    let store = store();
    let port = store.addr().port();
    let group = gloo(port, 0, 1, PATIENCE).unwrap();
    let view = Tensor::ones([4, 4], (Kind::Float, tch::Device::Cpu)).transpose(0, 1).narrow(0, 0, 2);
    let error = group.all_reduce_sum(&view).unwrap_err();
    assert!(error.to_string().contains("a view with gaps"), "{error}");
    let error = group.broadcast(&Tensor::ones([1], (Kind::Float, tch::Device::Cpu)), 1).unwrap_err();
    assert!(matches!(error, CommError::RootOutside { root: 1, size: 1 }), "{error}");
}

#[test]
fn libtorch_client_and_our_store_understand_each_other() {
    let server = store();
    let store = connect(server.addr().port(), 0);
    store.set("a", b"x\0y").unwrap();
    assert_eq!(store.get("a").unwrap(), b"x\0y");
    assert_eq!(store.compare_set("a", b"no", b"z").unwrap(), b"x\0y");
    assert_eq!(store.compare_set("a", b"x\0y", b"z").unwrap(), b"z");
    assert_eq!(store.compare_set("new", b"", b"1").unwrap(), b"1");
    store.append("a", b"zz").unwrap();
    assert_eq!(store.get("a").unwrap(), b"zzz");
    assert_eq!(store.add("n", 40).unwrap() + store.add("n", 2).unwrap(), 82);
    assert!(store.check("n").unwrap() && !store.check("never").unwrap());
    assert!(store.delete("a").unwrap() && !store.delete("a").unwrap());
    let begun = Instant::now();
    let error = store.wait("never", Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, CommError::Store { operation: "wait", .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(2));
    // After a cancelled wait the connection is in step again.
    assert_eq!(store.add("n", 0).unwrap(), 42);
    // A key above the limit ends this connection, not the store.
    assert!(matches!(store.get(&"long".repeat(3000)), Err(CommError::Store { operation: "get", .. })));
    assert_eq!(connect(server.addr().port(), 0).add("n", 0).unwrap(), 42);
}

#[test]
fn a_dead_store_is_an_error_with_its_address() {
    let port = store().addr().port();
    let addr = StoreAddr { host: "127.0.0.1".into(), port, prefix: String::new() };
    let begun = Instant::now();
    let error = Store::connect(addr, Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn solo_is_the_identity() {
    let tensor = Tensor::from_slice(&[1.5]);
    let work = Solo.all_reduce_sum(&tensor).unwrap();
    assert!(work.is_done().unwrap());
    work.wait(Duration::ZERO).unwrap();
    assert_eq!(tensor.double_value(&[0]), 1.5);
    assert!(Solo.broadcast(&tensor, 1).is_err());
}
