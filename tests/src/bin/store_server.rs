//! Serves the c10d store on a free loopback port, prints the port, and ends when its input ends. For clients written in
//! other languages (tests/conformance/store.py).

use enn_broker::store::{Limits, serve};
use std::{
    error::Error,
    io::{self, Read, Write},
    net::Ipv4Addr,
};

fn main() -> Result<(), Box<dyn Error>> {
    let store = serve((Ipv4Addr::LOCALHOST, 0).into(), Limits::default())?;
    let mut out = io::stdout().lock();
    writeln!(out, "{}", store.addr().port())?;
    out.flush()?;
    io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}
