//! Serves the c10d store, prints the port, and ends when its input ends. For clients written in other languages
//! (tests/conformance/store.py, tests/bench/store.py): `store_server [PORT [HOST]]`, by default a free port of loopback;
//! HOST "" is every address.

use enn_broker::tcpstore::{Options, listen, serve_on};
use std::{
    env,
    error::Error,
    io::{self, Read, Write},
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let port = arguments.next().map_or(Ok(0), |port| port.parse())?;
    let host = arguments.next().unwrap_or_else(|| "127.0.0.1".into());
    let store = serve_on(listen(&host, port)?, Options::default())?;
    let mut out = io::stdout().lock();
    writeln!(out, "{}", store.addr().port())?;
    out.flush()?;
    io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}
