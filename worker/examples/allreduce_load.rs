//! Times all-reduces between processes of this machine: `allreduce_load RANKS BYTES ROUNDS shared|private|gloo` prints the
//! seconds of every round as JSON. `tests/bench/allreduce_shm_vs_gloo.py` runs it beside torch.distributed.
//!
//! Rank 0 is this process; the others are processes of the same binary with the store's port and their rank as
//! additional arguments.

use enn_broker::tcpstore::{Limits, serve};
use enn_worker::comm::{Forming, Gloo, GlooOptions, ProcessGroup, Shm, ShmFormed, ShmOptions, Store, StoreAddr};
use std::{
    env,
    error::Error,
    net::Ipv4Addr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tch::{Device, Kind, Tensor};

/// Time limit of each operation.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of unmeasured rounds at the beginning.
const WARM_UP: u32 = 3;

struct Load {
    size: u32,
    bytes: i64,
    rounds: u32,
    way: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [size, bytes, rounds, way, place @ ..] = words.as_slice() else {
        return Err("usage: allreduce_load RANKS BYTES ROUNDS shared|private|gloo".into());
    };
    let load = Load { size: size.parse()?, bytes: bytes.parse()?, rounds: rounds.parse()?, way: way.clone() };
    if let [port, rank] = place {
        run(&load, port.parse()?, rank.parse()?)?;
        return Ok(());
    }
    let store = serve((Ipv4Addr::LOCALHOST, 0).into(), Limits::default())?;
    let port = store.addr().port();
    let child = |rank: u32| -> std::io::Result<Child> {
        let place = [port.to_string(), rank.to_string()];
        Command::new(env::current_exe()?).args(&words).args(place).stdout(Stdio::null()).spawn()
    };
    let children = (1..load.size).map(child).collect::<Result<Vec<_>, _>>()?;
    let seconds = run(&load, port, 0)?;
    for mut child in children {
        if !child.wait()?.success() {
            return Err("a rank failed; its own message is above".into());
        }
    }
    print(&seconds);
    Ok(())
}

fn run(load: &Load, port: u16, rank: u32) -> Result<Vec<f64>, Box<dyn Error>> {
    tch::set_num_threads(1);
    let addr = StoreAddr { host: "127.0.0.1".into(), port, prefix: "bench".into() };
    let store = Store::connect(addr, TIMEOUT)?;
    let size = load.size;
    let timeout = TIMEOUT;
    let forming = Forming::within(TIMEOUT);
    let group: Box<dyn ProcessGroup> = if load.way == "gloo" {
        Box::new(Gloo::form(&store, &GlooOptions { rank, size, timeout }, &forming)?)
    } else {
        match Shm::form(&store, &ShmOptions { rank, size, timeout }, &forming)? {
            ShmFormed::Group(group) => Box::new(group),
            ShmFormed::Refused { rank, reason } => return Err(format!("rank {rank}: {reason}").into()),
        }
    };
    let mut tensor = Tensor::f_zeros([load.bytes / 4], (Kind::Float, Device::Cpu))?;
    if load.way == "shared" {
        tensor = group.shared_like(&tensor)?.ok_or("this group shares no tensors")?;
    }
    let mut seconds = Vec::new();
    for round in 0..WARM_UP + load.rounds {
        let _ = tensor.f_fill_(f64::from(rank + 1))?;
        group.barrier(TIMEOUT)?;
        let begun = Instant::now();
        group.all_reduce_sum(&tensor)?.wait(TIMEOUT)?;
        if round >= WARM_UP {
            seconds.push(begun.elapsed().as_secs_f64());
        }
    }
    let expected = f64::from(size * (size + 1) / 2);
    if tensor.f_min()?.double_value(&[]) != expected || tensor.f_max()?.double_value(&[]) != expected {
        return Err("the sum is wrong".into());
    }
    group.shutdown(TIMEOUT)?;
    Ok(seconds)
}

#[expect(clippy::print_stdout, reason = "the result of this program")]
fn print(seconds: &[f64]) {
    println!("{}", serde_json::json!({ "seconds": seconds }));
}
