//! The retention scan and its gradient, in chunks of positions.

use super::call::{KernelCall, grid};
use super::check::{Check, blocks, ceil};
use super::engine;
use super::error::CudaError;
use super::source::{Source, Variant};
use tch::{Kind, Tensor};

pub(super) static SOURCE: Source =
    Source { name: "retention", text: include_str!("src/retention.cu"), numbers: &[], shared_bytes_max: 0 };

const THREADS: u32 = 128;
const THREADS_SUM: u32 = 256;
/// Positions that a thread holds at once, of which chunks are multiples; the source's SUB.
const SUB: i64 = 16;
/// Longest chunk of a two-way scan; the source's SUB · SUBS_MAX.
const TWO_WAY_MAX: i64 = 256;
/// Shortest chunk: with shorter ones the carries take longer than the chunks gain.
const CHUNK_MIN: i64 = 128;
/// Number of threads that keep one multiprocessor busy.
const THREADS_WANTED: i64 = 1024;

/// Operands of a scan: v (B, N, H, D), λ (H), the incoming state (B, H, D).
#[derive(Debug, Clone, Copy)]
pub struct RetentionScan<'a> {
    /// Summands, one per position.
    pub v: &'a Tensor,
    /// Decay λ per head.
    pub lambda: &'a Tensor,
    /// Incoming state; only for the causal scan.
    pub state: Option<&'a Tensor>,
    /// Whether the scan runs in both directions.
    pub both: bool,
}

/// Sizes and chunks of a scan.
#[derive(Debug, Clone, Copy)]
struct ScanPlan {
    variant: Variant,
    batch: i64,
    positions: i64,
    heads: i64,
    head: i64,
    length: i64,
    chunks: i64,
}

impl ScanPlan {
    fn columns(&self) -> i64 {
        self.heads * self.head
    }

    /// Words of the kernels' `Shape` structure.
    fn shape(&self) -> [u64; 6] {
        [self.batch, self.positions, self.columns(), self.head, self.length, self.chunks].map(i64::cast_unsigned)
    }

    fn blocks(&self) -> u32 {
        blocks(self.batch * self.chunks * self.columns(), i64::from(THREADS))
    }

    fn carry(&self, like: &Tensor) -> Result<Tensor, CudaError> {
        Ok(Tensor::f_empty([self.batch, self.chunks, self.columns()], (Kind::Float, like.device()))?)
    }

    fn is_empty(&self) -> bool {
        self.batch * self.positions * self.columns() == 0
    }
}

/// Returns the length of the chunks: short enough to fill the device, long enough to be worth a carry.
fn chunk_length(threads: i64, positions: i64, both: bool, processors: u32) -> i64 {
    let wanted = ceil(THREADS_WANTED * i64::from(processors), threads.max(1));
    let length = ceil((positions / wanted.max(1)).max(CHUNK_MIN), SUB) * SUB;
    let most = if both { TWO_WAY_MAX } else { i64::MAX };
    length.min(most).min(ceil(positions.max(1), SUB) * SUB)
}

fn plan(check: Check, s: &RetentionScan<'_>) -> Result<ScanPlan, CudaError> {
    let element = check.element("v", s.v)?;
    let facts = engine::facts(check.device("v", s.v)?)?;
    let [batch, positions, heads, head] = s.v.size()[..] else {
        return Err(check.refuse("v", s.v, "(batch, positions, heads, width)"));
    };
    let decays = s.lambda.numel() as i64 == heads && s.lambda.kind() == s.v.kind();
    check.that(decays, "lambda", s.lambda, "one number per head, of the kind of v")?;
    check.dense("lambda", s.lambda, s.v)?;
    check.that(!s.both || s.state.is_none(), "v", s.v, "without a state, both ways")?;
    let length = chunk_length(batch * heads * head, positions, s.both, facts.processors);
    let chunks = ceil(positions, length).max(1);
    Ok(ScanPlan { variant: Variant::new(&SOURCE, element, &[]), batch, positions, heads, head, length, chunks })
}

/// Returns the tensor itself if each position is dense, else a copy.
fn rows_of(x: &Tensor) -> Result<Tensor, CudaError> {
    let size = x.size();
    let stride = x.stride();
    let dense = (size[3] == 1 || stride[3] == 1) && (size[2] == 1 || stride[2] == size[3]);
    Ok(if dense { x.shallow_clone() } else { x.f_contiguous()? })
}

/// Words of the kernels' `Rows` structure: address and two strides.
fn rows(x: &Tensor) -> [u64; 3] {
    let stride = x.stride();
    [x.data_ptr() as u64, stride[0].cast_unsigned(), stride[1].cast_unsigned()]
}

fn state(
    check: Check,
    name: &'static str,
    state: Option<&Tensor>,
    p: &ScanPlan,
    like: &Tensor,
) -> Result<Option<Tensor>, CudaError> {
    let dense = state.map(Tensor::f_contiguous).transpose()?;
    if let Some(dense) = &dense {
        check.numbers(name, dense, like.kind(), p.batch * p.columns(), like)?;
    }
    Ok(dense)
}

/// Directions of the carries to compute, with their initial values.
#[derive(Debug, Clone, Copy)]
struct ScanDirections<'a> {
    up: bool,
    down: bool,
    /// Value before the first position, for the upward carry.
    state: Option<&'a Tensor>,
    /// Value added at the last position, for the downward carry.
    gstate: Option<&'a Tensor>,
}

/// Computes the upward and downward carries of `x`; `None` where one chunk holds all positions.
fn carries(
    p: &ScanPlan,
    x: &Tensor,
    lambda: &Tensor,
    ways: ScanDirections<'_>,
) -> Result<[Option<Tensor>; 2], CudaError> {
    if p.chunks == 1 {
        return Ok([None, None]);
    }
    let up = ways.up.then(|| p.carry(x)).transpose()?;
    let down = ways.down.then(|| p.carry(x)).transpose()?;
    let call =
        KernelCall::new(&p.variant, "ends").structure(&rows(x)).tensor(lambda).maybe(up.as_ref()).maybe(down.as_ref());
    call.structure(&p.shape()).launch(x, grid(p.blocks(), THREADS))?;
    let across = blocks(p.batch * p.columns(), i64::from(THREADS));
    let first = [(&up, ways.state, true, false), (&down, ways.gstate, false, true)];
    for (ends, first, scaled, is_down) in first {
        if let Some(ends) = ends {
            let call = KernelCall::new(&p.variant, "carries").tensor(ends).tensor(lambda).maybe(first);
            let call = call.word(u32::from(scaled)).word(u32::from(is_down)).structure(&p.shape());
            call.launch(x, grid(across, THREADS))?;
        }
    }
    Ok([up, down])
}

/// Computes the scan. Returns it and, for the causal scan, the outgoing state.
pub fn scan(s: &RetentionScan<'_>) -> Result<(Tensor, Option<Tensor>), CudaError> {
    let check = Check { kernel: "retention" };
    let lambda = s.lambda.f_contiguous()?;
    let s = &RetentionScan { lambda: &lambda, ..*s };
    let p = plan(check, s)?;
    let first = state(check, "state", s.state, &p, s.v)?;
    let options = (s.v.kind(), s.v.device());
    let y = Tensor::f_empty(s.v.size(), options)?;
    if p.is_empty() {
        let last = match (s.both, first) {
            (true, _) => None,
            (false, Some(first)) => Some(first),
            (false, None) => Some(Tensor::f_zeros([p.batch, p.heads, p.head], options)?),
        };
        return Ok((y, last));
    }
    let v = rows_of(s.v)?;
    let ways = ScanDirections { up: true, down: s.both, state: first.as_ref(), gstate: None };
    let [up, down] = carries(&p, &v, s.lambda, ways)?;
    if s.both {
        let call = KernelCall::new(&p.variant, "both").structure(&rows(&v)).tensor(s.lambda).maybe(up.as_ref());
        let call = call.maybe(down.as_ref()).tensor(&y).structure(&p.shape());
        call.launch(&v, grid(p.blocks(), THREADS))?;
        return Ok((y, None));
    }
    let last = Tensor::f_empty([p.batch, p.heads, p.head], options)?;
    let call = KernelCall::new(&p.variant, "scan_up").structure(&rows(&v)).tensor(s.lambda).maybe(up.as_ref());
    let call = call.maybe(first.as_ref()).tensor(&y).tensor(&last).structure(&p.shape());
    call.launch(&v, grid(p.blocks(), THREADS))?;
    Ok((y, Some(last)))
}

#[derive(Debug, Clone, Copy)]
pub struct RetentionScanBackward<'a> {
    pub scan: RetentionScan<'a>,
    /// Result of the scan.
    pub y: &'a Tensor,
    pub g: &'a Tensor,
    /// Gradient of the outgoing state.
    pub gstate: Option<&'a Tensor>,
}

/// Computes the gradients of v, λ and the incoming state. The causal scan returns the last even if there was no incoming state.
pub fn scan_backward(r: &RetentionScanBackward<'_>) -> Result<(Tensor, Tensor, Option<Tensor>), CudaError> {
    let check = Check { kernel: "retention_backward" };
    let lambda = r.scan.lambda.f_contiguous()?;
    let s = &RetentionScan { lambda: &lambda, ..r.scan };
    let p = plan(check, s)?;
    check.that(r.g.size() == s.v.size() && r.g.kind() == s.v.kind(), "g", r.g, "of the shape and kind of v")?;
    let gstate = state(check, "gstate", r.gstate, &p, s.v)?;
    let first = state(check, "state", s.state, &p, s.v)?;
    let options = (s.v.kind(), s.v.device());
    let dv = Tensor::f_empty(s.v.size(), options)?;
    let carried = [p.batch, p.heads, p.head];
    if p.is_empty() {
        let dfirst = match gstate {
            Some(gstate) => gstate,
            None => Tensor::f_zeros(carried, options)?,
        };
        return Ok((dv, s.lambda.f_zeros_like()?, (!s.both).then_some(dfirst)));
    }
    let g = rows_of(r.g)?;
    let share = p.carry(&g)?;
    let dfirst = if s.both {
        two_way_backward(&p, s, &g, &dv, &share)?;
        None
    } else {
        let y = r.y.f_contiguous()?;
        check.same("y", &y, &dv)?;
        let dfirst = Tensor::f_empty(carried, options)?;
        let ways = ScanDirections { up: false, down: true, state: None, gstate: gstate.as_ref() };
        let [_, down] = carries(&p, &g, s.lambda, ways)?;
        let call = KernelCall::new(&p.variant, "scan_down").structure(&rows(&g)).tensor(s.lambda).maybe(down.as_ref());
        let call = call.tensor(&y).maybe(first.as_ref()).maybe(gstate.as_ref()).tensor(&dv).tensor(&dfirst);
        call.tensor(&share).structure(&p.shape()).launch(&g, grid(p.blocks(), THREADS))?;
        Some(dfirst)
    };
    let dlambda = s.lambda.f_empty_like()?;
    let call = KernelCall::new(&p.variant, "lambda_sum").tensor(&share).tensor(&dlambda).structure(&p.shape());
    call.launch(&g, grid(blocks(p.heads, 1), THREADS_SUM))?;
    Ok((dv, dlambda, dfirst))
}

fn two_way_backward(
    p: &ScanPlan,
    s: &RetentionScan<'_>,
    g: &Tensor,
    dv: &Tensor,
    share: &Tensor,
) -> Result<(), CudaError> {
    let v = rows_of(s.v)?;
    let ways = ScanDirections { up: true, down: true, state: None, gstate: None };
    let [g_up, g_down] = carries(p, g, s.lambda, ways)?;
    let [v_up, v_down] = carries(p, &v, s.lambda, ways)?;
    let call = KernelCall::new(&p.variant, "both_back").structure(&rows(g)).structure(&rows(&v)).tensor(s.lambda);
    let call = call.maybe(g_up.as_ref()).maybe(g_down.as_ref()).maybe(v_up.as_ref()).maybe(v_down.as_ref());
    call.tensor(dv).tensor(share).structure(&p.shape()).launch(g, grid(p.blocks(), THREADS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_multiples_of_what_a_thread_holds_and_short_enough_for_two_ways() {
        for positions in [1, 15, 16, 17, 100, 1000, 65536, 1 << 20] {
            for threads in [1, 64, 4096, 1 << 20] {
                for both in [false, true] {
                    let length = chunk_length(threads, positions, both, 132);
                    assert!(length % SUB == 0 && length > 0);
                    assert!(!both || length <= TWO_WAY_MAX);
                    assert!(length - positions < SUB, "{positions} positions, chunks of {length}");
                }
            }
        }
        // Few columns are cut into many chunks, many columns into one.
        assert_eq!(chunk_length(512, 65536, false, 132), 256);
        assert!(chunk_length(1 << 18, 65536, false, 132) >= 65536);
    }
}
