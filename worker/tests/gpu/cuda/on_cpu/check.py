"""Every kernel against torch on the CPU, at sizes that miss every tile."""

import ctypes
import math

import torch
import torch.nn.functional as F

from kernels import Kernels, word

KINDS = [torch.float32, torch.bfloat16, torch.float16]
# Distance allowed, relative to 1 + |expected|.
CLOSE = {torch.float32: 3e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
torch.manual_seed(0)


def near(name, found, expected, kind, times=1.0):
    found, expected = found.double(), expected.double()
    assert found.shape == expected.shape, (name, found.shape, expected.shape)
    if found.numel() == 0:
        return
    both_nan = found.isnan() & expected.isnan()
    distance = ((found - expected).abs() / (1 + expected.abs())).masked_fill(both_nan, 0)
    worst = distance.max().item()
    assert worst <= CLOSE[kind] * times, f"{name} {kind}: {worst}"


def mask32(x):
    return x & 0xFFFFFFFF


def philox_words(seed, step, site, first, count):
    """The generator as op/random.rs describes it, in Python integers."""
    words = []
    for element in range(first, first + count):
        block = element // 4
        c = [mask32(block), mask32(block >> 32), site, mask32(step)]
        k = [mask32(seed), mask32(seed >> 32) ^ mask32(step >> 32)]
        for _ in range(10):
            a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [mask32(b >> 32) ^ c[1] ^ k[0], mask32(b), mask32(a >> 32) ^ c[3] ^ k[1], mask32(a)]
            k = [mask32(k[0] + 0x9E3779B9), mask32(k[1] + 0xBB67AE85)]
        words.append(c[element % 4])
    return torch.tensor(words, dtype=torch.int64)


def check_dropout():
    for kind in KINDS:
        for shape, rows, first_row in [((5, 7), 5, 0), ((3, 4), 3, 5), ((6, 10), 6, 3), ((1, 1), 1, 7), ((9, 3), 0, 4)]:
            seed, step, site, p = 0x1234567_89ABCDEF, 0x3_00000007, 11, 0.3
            x = torch.randn(shape).to(kind)
            n, threshold, scale = x.numel(), int((1 - p) * 2**32), 1 / (1 - p)
            key = torch.tensor([seed, step, first_row, rows])
            first = first_row * (n // rows) if rows else 0
            keep = (philox_words(seed, step, site, first, n) < threshold).view(shape)
            scaled = (x.float() * torch.tensor(scale, dtype=torch.float32)).to(kind)
            for packed in (0, 1):
                y = torch.full_like(x, 9)
                Kernels("dropout", kind, PACKED=packed)("dropout", 2, 4, x, y, key, n, word(site), word(threshold), scale)
                assert torch.equal(y, scaled * keep), (kind, shape)
            first = first_row * (shape[0] // rows) if rows else 0
            keep = (philox_words(seed, step, site, first, shape[0]) < threshold)[:, None]
            y = torch.full_like(x, 9)
            Kernels("dropout", kind, PACKED=0)("drop_rows", 2, 4, x, y, key, shape[0], shape[1], word(site), word(threshold), scale)
            assert torch.equal(y, scaled * keep), (kind, shape, "rows")


def apart(x, gap):
    """x with `gap` numbers between its rows."""
    room = torch.full((x.shape[0], x.shape[1] + gap), 7.0, dtype=x.dtype)
    room[:, : x.shape[1]] = x
    return room[:, : x.shape[1]]


def check_gated():
    for kind in KINDS:
        # The last ones have rows that begin further apart than they are wide.
        for rows, width, vec, gap in [(5, 7, 1, 0), (3, 16, 4, 0), (1, 1, 1, 0), (4, 8, 8, 0), (5, 6, 2, 4), (3, 10, 2, 6)]:
            x, g = torch.randn(rows, 2 * width).to(kind), torch.randn(rows, width).to(kind)
            x, g, y, dx = (apart(t, gap) for t in (x, g, torch.empty_like(g), torch.empty_like(x)))
            kernels = Kernels("gated", kind, VEC=vec)
            half = x[0, width:]
            kernels("gate", 2, 4, x, half, y, rows, width, x.stride(0), y.stride(0))
            wide = x.double().requires_grad_()
            a, b = wide.chunk(2, -1)
            expected = F.silu(a) * b
            near("gate", y, expected, kind)
            strides = x.stride(0), g.stride(0), dx.stride(0)
            kernels("gate_back", 2, 4, g, x, half, dx, dx[0, width:], rows, width, *strides)
            near("gate_back", dx, torch.autograd.grad(expected, wide, g.double())[0], kind)


def check_norm():
    cases = [(5, 7, 32, 1), (9, 64, 32, 4), (1, 33, 32, 1), (3, 200, 64, 1), (6, 256, 64, 4), (2, 1000, 128, 8)]
    for kind in KINDS:
        for rows, width, threads, vec in cases:
            for centred in (0, 1):
                for residual in (False, True):
                    norm_case(kind, rows, width, threads, vec, centred, residual)
                if kind == torch.float32:
                    norm_beside_a_stream(rows, width, threads, vec, centred)


def norm_beside_a_stream(rows, width, threads, vec, centred):
    for code, low in ((1, torch.bfloat16), (2, torch.float16)):
        kernels = Kernels("norm", torch.float32, WIDTH=width, THREADS=threads, VEC=vec, CENTRED=centred, LOW=code, GATED=0)
        block = (threads, 4 if threads == 32 else 1)
        x, gs = torch.randn(rows, width), torch.randn(rows, width)
        r, g = (torch.randn(rows, width).to(low) for _ in range(2))
        w, b = torch.randn(width), torch.randn(width)
        total, y, mean, rstd = torch.empty_like(x), torch.empty_like(r), torch.empty(rows), torch.empty(rows)
        kernels("norm_forward", 2, block, x, r, w, b if centred else None, total, y, mean, rstd, rows, 1e-5)
        assert torch.equal(total, x + r.float())
        wide = total.double().requires_grad_()
        scaled = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w.double()
        expected = F.layer_norm(wide, (width,), w.double(), b.double(), 1e-5) if centred else scaled
        near("norm, low", y, expected, low)
        dx, rounded = torch.empty_like(x), torch.empty_like(r)
        partial = torch.full(((2 if centred else 1) * 2, width), float("nan"))
        kernels("norm_backward", 2, block, g, gs, total, mean, rstd, w, dx, rounded, partial, rows, word(centred))
        near("norm dx, low", dx, torch.autograd.grad(expected, wide, g.double())[0] + gs.double(), torch.float32)
        assert torch.equal(rounded, dx.to(low))


def norm_case(kind, rows, width, threads, vec, centred, residual):
    kernels = Kernels("norm", kind, WIDTH=width, THREADS=threads, VEC=vec, CENTRED=centred, LOW=0, GATED=0)
    block = (threads, 4 if threads == 32 else 1)
    x, r, w, b, g, gs = (torch.randn(s).to(kind) for s in [(rows, width)] * 2 + [(width,)] * 2 + [(rows, width)] * 2)
    total, y = torch.empty_like(x), torch.empty_like(x)
    mean, rstd = torch.empty(rows), torch.empty(rows)
    bias = b if centred else None
    kernels("norm_forward", 2, block, x, r if residual else None, w, bias, total, y, mean, rstd, rows, 1e-5)
    base = (x.float() + r.float()).to(kind) if residual else x
    if residual:
        assert torch.equal(total, base)
    wide, ww, wb = base.double().requires_grad_(), w.double().requires_grad_(), b.double().requires_grad_()
    if centred:
        expected = F.layer_norm(wide, (width,), ww, wb, 1e-5)
    else:
        expected = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * ww
    near("norm", y, expected, kind)
    dx, blocks = torch.empty_like(x), 2
    groups = blocks
    partial = torch.full(((2 if centred else 1) * groups, width), float("nan"))
    args = (g, gs if residual else None, base, mean, rstd, w, dx, None, partial, rows, word(centred))
    kernels("norm_backward", blocks, block, *args)
    dw, db = torch.empty_like(w), torch.empty_like(b)
    across = (width + 31) // 32
    kernels("norm_sum", across * (2 if centred else 1), (32, 32), partial, dw, db if centred else None, groups)
    wanted = torch.autograd.grad(expected, [wide, ww, wb] if centred else [wide, ww], g.double())
    near("norm dx", dx, wanted[0] + (gs.double() if residual else 0), kind)
    near("norm dw", dw, wanted[1], kind)
    if centred:
        near("norm db", db, wanted[2], kind)
    plain = torch.empty_like(x)
    kernels("norm_forward", 2, block, x, None, None, None, None, plain, mean, rstd, rows, 1e-5)
    kernels("norm_backward", 1, block, g, None, x, mean, rstd, None, dx, None, None, rows, word(0))
    wide = x.double().requires_grad_()
    expected = F.layer_norm(wide, (width,)) if centred else wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    near("norm plain", plain, expected, kind)
    near("norm plain dx", dx, torch.autograd.grad(expected, wide, g.double())[0], kind)


def check_gated_norm():
    for kind, code, low in [(k, 0, k) for k in KINDS] + [(torch.float32, 1, torch.bfloat16), (torch.float32, 2, torch.float16)]:
        for rows, width, threads, vec in [(5, 7, 32, 1), (6, 64, 32, 4), (3, 300, 64, 1), (4, 512, 128, 4)]:
            for centred in (1, 0):
                gated_norm_case(kind, code, low, rows, width, threads, vec, centred)


def gated_norm_case(kind, code, low, rows, width, threads, vec, centred):
    kernels = Kernels("norm", kind, WIDTH=width, THREADS=threads, VEC=vec, CENTRED=centred, LOW=code, GATED=1)
    block = (threads, 4 if threads == 32 else 1)
    both = torch.randn(rows, 3 * width).to(low)
    q, gate = both[:, :width], both[:, 2 * width :]
    s, g = torch.randn(rows, width).to(kind), torch.randn(rows, width).to(low)
    w, b = torch.randn(width).to(kind), torch.randn(width).to(kind) if centred else None
    y, mean, rstd = torch.empty(rows, width).to(low), torch.empty(rows), torch.empty(rows)
    kernels("gated_norm", 2, block, s, q, q.stride(0), gate, gate.stride(0), w, b, y, mean, rstd, rows, 1e-5)
    leaves = [t.double().requires_grad_() for t in (s, q, gate, w, *([b] if centred else []))]
    product = leaves[0] * leaves[1]
    if centred:
        normed = F.layer_norm(product, (width,), leaves[3], leaves[4], 1e-5)
    else:
        normed = product * (product.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * leaves[3]
    expected = F.silu(leaves[2]) * normed
    near("gated norm", y, expected, low)
    ds, dq, dgate = torch.empty_like(s), torch.empty_like(y), torch.empty_like(y)
    groups = 2
    partial = torch.full(((2 if centred else 1) * groups, width), float("nan"))
    args = (g, s, q, q.stride(0), gate, gate.stride(0), mean if centred else None, rstd, w, b, ds, dq, dgate, partial, rows)
    kernels("gated_norm_back", groups, block, *args)
    dw, db = torch.empty_like(w), torch.empty_like(w)
    across = (width + 31) // 32
    kernels("norm_sum", across * (2 if centred else 1), (32, 32), partial, dw, db if centred else None, groups)
    wanted = torch.autograd.grad(expected, leaves, g.double())
    names = [("ds", ds, low), ("dq", dq, low), ("dgate", dgate, low), ("dw", dw, low), ("db", db, low)]
    for (name, found, as_kind), want in zip(names, wanted):
        near(f"gated norm {name}", found, want, as_kind)


def check_cross_entropy():
    for kind in KINDS:
        cases = [(5, 7, 32, 1, 0), (3, 64, 32, 4, 0), (6, 1003, 128, 1, 0), (2, 2048, 256, 8, 0), (3, 1, 32, 1, 0)]
        for rows, classes, threads, vec, apart in [*cases, (5, 7, 32, 4, 1), (6, 1003, 128, 8, 5), (4, 3, 32, 8, 5)]:
            kernels = Kernels("cross_entropy", kind, THREADS=threads, VEC=vec)
            x = (torch.randn(rows, classes + apart) * 3).to(kind)[:, :classes]
            x[0, 0] = -math.inf if classes > 1 else 0.5
            targets = torch.randint(classes, (rows,))
            targets[-1] = -100
            targets[0] = classes - 1
            loss, lse = torch.empty(rows), torch.empty(rows)
            kernels("cross_entropy", 2, (threads, 4 if threads == 32 else 1), x, targets, loss, lse, rows, classes, x.stride(0), -100)
            wide = x.double().requires_grad_()
            expected = F.cross_entropy(wide, targets, reduction="none", ignore_index=-100)
            near("loss", loss, expected, torch.float32)
            near("lse", lse, wide.logsumexp(-1), torch.float32)
            g = torch.randn(rows)
            want = torch.autograd.grad(expected, wide, g.double())[0]
            dx = torch.full((rows, classes + apart + vec * (apart > 0)), 7.0).to(kind)
            strides = [x.stride(0), dx.stride(0)]
            kernels("cross_entropy_back", 3, 8, g, 1, x, targets, lse, dx, rows, classes, *strides, -100)
            near("dlogits", dx[:, :classes], want, kind)
            assert (dx[:, classes:] == 7).all(), "written between rows"
            kernels("cross_entropy_back", 3, 8, g, 1, x, targets, lse, x, rows, classes, x.stride(0), x.stride(0), -100)
            near("dlogits in place", x, want, kind)
    kernels = Kernels("cross_entropy", torch.float32, THREADS=32, VEC=1)
    x, loss, lse = torch.randn(3, 5), torch.empty(3), torch.empty(3)
    x[1, 2] = math.nan
    kernels("cross_entropy", 1, (32, 4), x, torch.tensor([5, 0, 1]), loss, lse, 3, 5, 5, -100)
    assert loss[0].isnan() and loss[1].isnan() and not loss[2].isnan()


class Shape(ctypes.Structure):
    _fields_ = [(n, ctypes.c_longlong) for n in ["batch", "positions", "columns", "head", "length", "chunks"]]


class Rows(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("batch_stride", ctypes.c_longlong), ("stride", ctypes.c_longlong)]


def rows_of(x):
    return Rows(x.data_ptr(), x.stride(0), x.stride(1))


def scan(v, lam, state=None):
    value = torch.zeros_like(v[:, 0]) if state is None else state
    out = []
    for t in range(v.shape[1]):
        value = lam[None, :, None] * value + v[:, t]
        out.append(value)
    return torch.stack(out, 1)


def check_retention():
    sizes = [(2, 1, 2, 3, 64), (1, 5, 1, 4, 16), (2, 37, 3, 5, 16), (1, 100, 2, 33, 32), (3, 64, 2, 2, 16), (1, 300, 1, 3, 64)]
    for kind in KINDS:
        for b, n, h, d, length in sizes:
            for state in (False, True):
                retention_case(kind, b, n, h, d, length, state, chunked=True)
            retention_case(kind, b, n, h, d, length, True, chunked=False)


def retention_case(kind, b, n, h, d, length, with_state, chunked):
    kernels = Kernels("retention", kind)
    wide_rows = torch.randn(b, n, h, 3 * d).to(kind)
    v = wide_rows.reshape(b, n, 3 * h * d)[..., : h * d].view(b, n, h, d) if h == 1 else torch.randn(b, n, h, d).to(kind)
    g, lam = torch.randn(b, n, h, d).to(kind), (torch.rand(h) * 0.4 + 0.59).to(kind)
    state = torch.randn(b, h, d).to(kind) if with_state else None
    gstate = torch.randn(b, h, d).to(kind) if with_state else None
    chunks = (n + length - 1) // length if chunked else 1
    s = Shape(b, n, h * d, d, length if chunked else max(n, 1), chunks)
    blocks = (b * chunks * h * d + 127) // 128
    across = (b * h * d + 127) // 128
    carry = lambda: torch.full((b, chunks, h * d), float("nan"))
    up, y, last = carry(), torch.empty(b, n, h, d, dtype=kind), torch.empty(b, h, d, dtype=kind)
    if chunks > 1:
        kernels("ends", blocks, 128, rows_of(v), lam, up, None, s)
        kernels("carries", across, 128, up, lam, state, word(1), word(0), s)
    kernels("scan_up", blocks, 128, rows_of(v), lam, up, state, y, last, s)
    vw, lw, gw = v.double().requires_grad_(), lam.double().requires_grad_(), g.double()
    sw = state.double().requires_grad_() if with_state else None
    want = scan(vw, lw, sw)
    near("scan", y, want, kind)
    near("last", last, want[:, -1], kind)
    down, share, dv = carry(), carry(), torch.empty_like(y)
    dfirst, dlam = torch.empty_like(last), torch.empty_like(lam)
    if chunks > 1:
        kernels("ends", blocks, 128, rows_of(g), lam, None, down, s)
        kernels("carries", across, 128, down, lam, gstate, word(0), word(1), s)
    kernels("scan_down", blocks, 128, rows_of(g), lam, down, y, state, gstate, dv, dfirst, share, s)
    kernels("lambda_sum", h, 256, share, dlam, s)
    objective = (want * gw).sum() + ((want[:, -1] * gstate.double()).sum() if with_state else 0)
    grads = torch.autograd.grad(objective, [vw, lw] + ([sw] if with_state else []))
    near("dv", dv, grads[0], kind)
    # λ's share multiplies numbers rounded to the kind, summed over everything.
    near("dlambda", dlam, grads[1], kind, times=4)
    if with_state:
        near("dstate", dfirst, grads[2], kind)
    if n > 256 and chunks == 1:
        return
    two_way_case(kernels, kind, v, lam, g, s)


def two_way_case(kernels, kind, v, lam, g, s):
    b, n, h, d = v.shape
    blocks, across = (b * s.chunks * h * d + 127) // 128, (b * h * d + 127) // 128
    carries = [torch.full((b, s.chunks, h * d), float("nan")) for _ in range(4)]
    vu, vd, gu, gd = carries
    y, dv, share, dlam = torch.empty_like(g), torch.empty_like(g), torch.empty_like(vu), torch.empty_like(lam)
    if s.chunks > 1:
        for rows, a, z in [(v, vu, vd), (g, gu, gd)]:
            kernels("ends", blocks, 128, rows_of(rows), lam, a, z, s)
            kernels("carries", across, 128, a, lam, None, word(1), word(0), s)
            kernels("carries", across, 128, z, lam, None, word(1), word(1), s)
    else:
        vu = vd = gu = gd = None
    kernels("both", blocks, 128, rows_of(v), lam, vu, vd, y, s)
    vw, lw = v.double().requires_grad_(), lam.double().requires_grad_()
    want = scan(vw, lw) + scan(vw.flip(1), lw).flip(1) - vw
    near("both", y, want, kind)
    kernels("both_back", blocks, 128, rows_of(g), rows_of(v), lam, gu, gd, vu, vd, dv, share, s)
    kernels("lambda_sum", h, 256, share, dlam, s)
    grads = torch.autograd.grad((want * g.double()).sum(), [vw, lw])
    near("both dv", dv, grads[0], kind)
    near("both dlambda", dlam, grads[1], kind)


ARRAYS_MAX, PER_BLOCK = 56, 4096


class Array(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in "pmvgsa"] + [(n, ctypes.c_longlong) for n in ["count", "decays", "first_block"]]


class Table(ctypes.Structure):
    _fields_ = [("arrays", ctypes.c_longlong), ("blocks", ctypes.c_longlong), ("at", Array * ARRAYS_MAX)]


class Settings(ctypes.Structure):
    _fields_ = [(n, ctypes.c_double) for n in ["beta1", "beta2", "decay", "clip"]]


def check_adamw():
    settings = Settings(0.9, 0.99, 0.1, 0.0)
    for kind in KINDS:
        for sizes, vec in [([7, 5000, 1, 4097], 1), ([16, 8192, 4], 4)]:
            low = torch.float16 if vec == 4 else torch.bfloat16
            kernels = Kernels("adamw", kind, VEC=vec, HALF_SHADOW=int(vec == 4))
            table, arrays, blocks = Table(), [], 0
            for i, n in enumerate(sizes):
                p, m, v = torch.randn(n), torch.randn(n) * 0.1, torch.rand(n)
                g, shadow, average = (torch.randn(n) * 8).to(kind), torch.zeros(n, dtype=low), torch.randn(n)
                arrays.append((p, m, v, g, shadow, average, i % 2))
                pointers = [t.data_ptr() for t in (p, m, v, g, shadow, average)]
                table.at[i] = Array(*pointers, n, i % 2, blocks)
                blocks += (n + PER_BLOCK - 1) // PER_BLOCK
            table.arrays, table.blocks = len(sizes), blocks
            scalar = lambda x: torch.tensor(x, dtype=torch.float64)
            partial, norm, numbers = torch.empty(blocks).double(), scalar(0.0), torch.empty(6)
            mean, taken, steps, skipped = (scalar(x) for x in (9.0, 9.0, 2.0, 5.0))
            kernels("squares", blocks, 256, table, partial)
            kernels("norm_of", 1, 256, partial, blocks, scalar(3.0), norm)
            whole = torch.cat([a[3].double() for a in arrays] + [torch.tensor([3.0]).double()]).norm()
            near("norm and another", norm, whole, torch.float32)
            kernels("norm_of", 1, 256, partial, blocks, None, norm)
            whole = torch.cat([a[3].double() for a in arrays]).norm()
            near("norm", norm, whole, torch.float32)
            before = [[t.clone() for t in a[:6]] for a in arrays]
            share = torch.tensor([0.25])
            given = (scalar(8.0), scalar(1e-2), steps, skipped, numbers, mean, taken)
            eps = ctypes.c_float(1e-8)
            kernels("step_scalars", 1, 1, scalar(math.nan), *given, settings)
            assert (taken.item(), steps.item(), skipped.item()) == (0, 2, 6)
            kernels("adamw", blocks, 256, table, numbers, share, eps)
            assert all(torch.equal(t, o) for a, b in zip(arrays, before) for t, o in zip(a, b))
            kernels("step_scalars", 1, 1, norm, *given, Settings(0.9, 0.99, 0.1, 1.0))
            near("clip", numbers[0], min(1.0, 1 / (whole / 8 + 1e-6)) / 8, torch.float32)
            steps.fill_(2.0)
            kernels("step_scalars", 1, 1, norm, *given, settings)
            assert (taken.item(), steps.item(), skipped.item()) == (1, 3, 6)
            kernels("adamw", blocks, 256, table, numbers, share, eps)
            for (p, m, v, g, shadow, average, decays), (p0, m0, v0, g0, _, average0) in zip(arrays, before):
                grad = g0.double() * 0.125
                m1, v1 = m0 * 0.9 + grad * 0.1, v0 * 0.99 + grad.square() * 0.01
                p1 = p0.double() * (1 - (0.01 * 0.1 if decays else 0))
                p1 = p1 - 0.01 * (m1 / (1 - 0.9**3)) / ((v1 / (1 - 0.99**3)).sqrt() + 1e-8)
                average1 = torch.lerp(average0.double(), p1, 0.25)
                for name, found_, wanted in [("m", m, m1), ("v", v, v1), ("p", p, p1), ("average", average, average1)]:
                    near(f"adamw {name}", found_, wanted, torch.float32)
                assert torch.equal(g, g0)
                assert torch.equal(shadow, p.to(low))
            arrays[1][3][2] = math.nan if kind == torch.float32 else math.inf
            kernels("squares", blocks, 256, table, partial)
            kernels("norm_of", 1, 256, partial, blocks, None, norm)
            assert not norm.isfinite()
            averages_are_right(kernels, table, arrays, blocks)
            kernels("zero", blocks, 256, table)
            assert all((a[3] == 0).all() for a in arrays)


def averages_are_right(kernels, table, arrays, blocks):
    """The first moments stand for the weights."""
    updates, share = torch.tensor(6.0, dtype=torch.float64), torch.empty(1)
    taken = torch.tensor(0.0, dtype=torch.float64)
    kernels("average_share", 1, 1, updates, taken, share, ctypes.c_double(0.99))
    assert (updates.item(), share.item()) == (6, 0)
    kernels("average_share", 1, 1, updates, taken.fill_(1), share, ctypes.c_double(0.99))
    assert updates.item() == 7
    w = 0.01 / (1 - 0.99**7)
    near("share", share, torch.tensor([w]), torch.float32)
    before = [p.clone() for p, *_ in arrays]
    kernels("average", blocks, 256, table, share)
    for old, (p, m, *_) in zip(before, arrays):
        near("average", p, torch.lerp(old.double(), m.double(), w), torch.float32)


def check_quantize():
    cases = [(16, 16), (32, 144), (128, 128), (144, 272), (400, 16)]
    for kind in KINDS:
        for gradient, to, most in [(0, torch.float8_e4m3fn, 448.0), (1, torch.float8_e5m2, 57344.0)]:
            for vec in (1, 16 // kind.itemsize):
                kernels = Kernels("quantize", kind, VEC=vec, GRADIENT=gradient)
                for rows, columns in cases:
                    # Over many sizes, so that numbers below the normal ones and 0 are met.
                    x = torch.randn(rows, columns) * torch.exp2(torch.randint(-14, 3, (rows, columns)).float())
                    quantize_case(kernels, x.to(kind), to, most, vec)
                quantize_case(kernels, torch.zeros(16, 32).to(kind), to, most, vec)
                for odd in (math.nan, math.inf, -math.inf):
                    x = torch.randn(32, 16).to(kind)
                    x[17, 3] = odd
                    quantize_case(kernels, x, to, most, vec)


def quantize_case(kernels, x, to, most, vec):
    (rows, columns), packs = x.shape, x.numel() // vec
    blocks = min((packs + 1023) // 1024, 3)
    partial, scale = torch.full((blocks,), -1, dtype=torch.int32), torch.tensor(9.0)
    q, qt = torch.zeros(rows, columns, dtype=torch.uint8), torch.zeros(columns, rows, dtype=torch.uint8)
    kernels("largest", blocks, 256, x, packs, partial)
    kernels("quantize", 2, 256, x, partial, blocks, q, qt, scale, rows, columns)
    want = (x.float().abs().max() * (1 / most)).clamp_min(1e-30)
    assert torch.equal(scale, want) or (scale.isnan() and want.isnan()), (scale, want)
    expected = (x.float() * want.reciprocal()).clamp(-most, most).to(to).float()
    found = q.view(to).float()
    assert ((found == expected) | (found.isnan() & expected.isnan())).all(), (x.dtype, to, x.shape)
    assert torch.equal(q.t(), qt)


class View(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("batch", ctypes.c_longlong), ("head", ctypes.c_longlong), ("row", ctypes.c_longlong)]


class Problem(ctypes.Structure):
    _fields_ = [(n, ctypes.c_longlong) for n in ["batch", "heads", "queries", "keys"]]


class Mask(ctypes.Structure):
    _fields_ = [(n, ctypes.c_longlong) for n in ["causal", "window", "dilation"]]


def view(x):
    return View(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2))


def check_attention():
    cases = [
        # batch, heads, queries, keys, width, (causal, window, dilation), bias axes, vec
        (1, 2, 5, 7, 8, (0, -1, 1), 0, 1),
        (2, 1, 70, 33, 16, (0, -1, 1), 1, 4),
        (2, 2, 3, 130, 20, (0, -1, 1), 2, 1),
        (1, 1, 100, 100, 32, (1, -1, 1), 2, 4),
        (1, 2, 150, 150, 16, (0, 9, 1), 1, 1),
        (1, 1, 140, 140, 16, (1, 20, 3), 0, 1),
        (1, 1, 65, 65, 128, (1, -1, 1), 1, 4),
    ]
    modified = [
        # The same, then cap of the scores (0 for none) and whether distance counts.
        (2, 1, 70, 33, 16, (0, -1, 1), 1, 4, 0.7, False),
        (2, 2, 67, 67, 16, (1, -1, 1), 2, 1, 1.3, False),
        (1, 1, 9, 9, 8, (0, -1, 1), 1, 1, 50.0, False),
        (1, 4, 66, 66, 16, (1, -1, 1), 0, 4, 0.0, True),
        (2, 3, 70, 70, 20, (0, -1, 1), 2, 1, 0.0, True),
        (1, 6, 80, 80, 16, (0, 20, 2), 1, 4, 0.9, True),
        (1, 1, 70, 70, 16, (1, 30, 1), 2, 4, 0.9, True),
    ]
    for kind in KINDS:
        for case in cases:
            attention_case(kind, *case, cap=0.0, alibi=False)
        for *case, cap, alibi in modified:
            attention_case(kind, *case, cap, alibi)


def slopes(heads):
    """As the authors of ALiBi give them."""
    whole = 2 ** math.floor(math.log2(heads))
    own = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    return own if whole == heads else own + slopes(2 * whole)[0::2][: heads - whole]


def attention_case(kind, b, h, n, m, d, mask, bias_axes, vec, cap, alibi):
    q, k, v, g = (torch.randn(b, rows, h, d).to(kind).transpose(1, 2) for rows in (n, m, m, n))
    bias = torch.randn([m] if bias_axes == 1 else [b, m]).to(kind) if bias_axes else None
    stride = m if bias_axes == 2 else 0
    kernels = Kernels("attention", kind, HEAD=d, VEC=vec, CAPPED=int(cap > 0), ALIBI=int(alibi))
    problem, scale = Problem(b, h, n, m), 1 / math.sqrt(d)
    last = (problem, Mask(*mask), scale, cap)
    out, lse = torch.full_like(q, 9), torch.empty(b, h, n)
    rows, keys = b * h * ((n + 63) // 64), b * h * ((m + 63) // 64)
    kernels("attention", rows, 128, view(q), view(k), view(v), bias, stride, view(out), lse, *last)
    qw, kw, vw = (x.double().requires_grad_() for x in (q, k, v))
    bw = bias.double().requires_grad_() if bias is not None else None
    scores = qw @ kw.transpose(-1, -2) * scale
    if cap:
        scores = cap * (scores / cap).tanh()
    if bw is not None:
        scores = scores + (bw[:, None, None, :] if bias_axes == 2 else bw)
    i, j = torch.arange(n)[:, None], torch.arange(m)
    if alibi:
        scores = scores - torch.tensor(slopes(h), dtype=torch.float64)[:, None, None] * (i - j).abs()
    causal, window, dilation = mask
    keep = torch.ones(n, m, dtype=torch.bool)
    keep &= (j <= i) | (not causal)
    keep &= ((i - j).abs() <= window) | (window < 0)
    keep &= (i - j) % dilation == 0
    scores = scores.masked_fill(~keep, -math.inf)
    want = scores.softmax(-1) @ vw
    near("attention", out, want, kind)
    near("attention lse", lse, scores.logsumexp(-1), kind)
    delta = torch.empty(b, h, n)
    kernels("attention_delta", (b * h * n + 3) // 4, 128, view(g), view(out), delta, problem)
    dq, dk, dv = (torch.full_like(x, 9) for x in (q, k, v))
    dbias = torch.full((b, h, m), math.nan)
    given = (view(q), view(k), view(v), bias, stride, view(g), lse, delta)
    kernels("attention_queries", rows, 128, *given, view(dq), *last)
    kernels("attention_keys", keys, 128, *given, view(dk), view(dv), dbias, *last)
    wanted = torch.autograd.grad(want, [qw, kw, vw] + ([bw] if bias is not None else []), g.double())
    for name, found, expected in zip(["dq", "dk", "dv"], (dq, dk, dv), wanted):
        near(f"attention {name}", found, expected, kind, times=2)
    if bias is not None:
        near("attention dbias", dbias.sum(1) if bias_axes == 2 else dbias.sum((0, 1)), wanted[3], kind, times=2)


def check_retention_decay():
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        beta, g = torch.linspace(0, 17, 35).to(kind), torch.randn(35).to(kind)
        beta.requires_grad_()
        found, back = torch.empty_like(beta), torch.empty_like(g)
        kernels = Kernels("retention_decay", kind)
        kernels("retention_decay", 2, 4, beta, found, 35, 1.0, 16.0)
        kernels("retention_decay_back", 2, 4, g, beta, back, 35, 1.0, 16.0)
        wide = beta.detach().double().requires_grad_()
        wanted = 1 - torch.exp2(-wide.clamp(1, 16))
        near("lambda", found, wanted, kind)
        near("dbeta", back, torch.autograd.grad(wanted, wide, g.double())[0], kind)
        kernels("retention_decay", 1, 4, torch.tensor([math.nan, 2.0], dtype=kind), found, 2, 1.0, 16.0)
        assert found[0].isnan() and found[1] == 0.75, "what is no number stays so"


def check_sum():
    for ranks, n, room in [(2, 13, 16), (4, 1021, 1024), (3, 8, 8), (8, 3, 4)]:
        values = torch.randn(ranks, n)
        expected = values[0]
        for of_rank in values[1:]:
            expected = expected + of_rank
        for rank in range(ranks):
            own, parts = values[rank].clone(), torch.full((ranks - 1, room), math.nan)
            parts[:, :n] = torch.cat([values[:rank], values[rank + 1 :]])
            for vec in (1, 4):
                found = own.clone()
                kernels = Kernels("sum", torch.float32, VEC=vec, KIND=0, REDUCE=0)
                kernels("sum_parts", 2, 4, found, parts, n, room, word(rank), word(ranks))
                assert torch.equal(found, expected), (ranks, n, rank, vec)
    values = torch.randn(2, 5000)
    found, partial, norm = values[0].clone(), torch.full((7,), math.nan, dtype=torch.float64), torch.zeros(1)
    kernels = Kernels("sum", torch.float32, VEC=4, KIND=0, REDUCE=0)
    kernels("sum_parts_measured", 7, 512, found, values[1:], 5000, 5000, word(0), word(2), partial)
    assert torch.equal(found, values.sum(0))
    kernels("norm_of_parts", 1, 512, partial, 7, norm, torch.zeros(1, dtype=torch.int32))
    near("norm", norm, found.double().norm().reshape(1), torch.float32)
    kernels("norm_of_parts", 1, 512, partial, 7, norm, torch.ones(1, dtype=torch.int32))
    assert norm.isnan().all(), "after a cut the norm is no number"
    for n, offset, cut in [(80007, 0, 0), (80007, 16, 0), (1000, 3, 0), (5, 0, 0), (80007, 0, 1), (1000, 3, 1)]:
        came, place = torch.randint(0, 255, (n + offset,), dtype=torch.uint8)[offset:], torch.full((n + offset,), 255, dtype=torch.uint8)[offset:]
        kernels("take_part", 3, 512, came, place, n, torch.tensor([cut], dtype=torch.int32))
        assert torch.equal(place, torch.full_like(place, 255) if cut else came), (n, offset, cut)
    kinds = [torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bfloat16, torch.float16]
    reduces = [lambda t: t.sum(0, dtype=t.dtype), lambda t: t.amin(0), lambda t: t.amax(0)]
    for number, kind in enumerate(kinds):
        values = torch.randint(0, 40, (3, 100)).to(kind)
        if kind.is_floating_point:
            values[1, 7] = math.nan
        for reduce, expected in enumerate(reduces):
            found = values[1].clone()
            kernels = Kernels("sum", torch.float32, VEC=1, KIND=number, REDUCE=reduce)
            kernels("sum_parts", 2, 4, found, values[[0, 2]].contiguous(), 100, 100, word(1), word(3))
            assert torch.equal(found.nan_to_num(-1), expected(values).nan_to_num(-1)), (kind, reduce)


if __name__ == "__main__":
    import sys

    for name, check in list(globals().items()):
        if name.startswith("check_") and (len(sys.argv) < 2 or name[6:] in sys.argv[1:]):
            check()
            print(f"{name[6:]}: right")
