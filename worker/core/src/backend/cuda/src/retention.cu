// The scan y_t = λ·y_{t−1} + v_t and its reverse, in chunks of positions: each thread owns one column (a number of one
// head) of one chunk. `ends` scans the chunks from zero, `carries` runs along the chunk ends, the last kernel scans
// each chunk again from what comes in. With one chunk only the last kernel runs.
//
// A scan that runs towards higher positions is "up", the other "down". The carry of a chunk is the scan's value one
// position before its first, in the scan's direction. Carries are f32, indexed (batch, chunk, column).

#define SUB 16          // Positions held in registers at once.
#define THREADS 128

struct Shape {
  i64 batch, positions, columns, head; // columns = heads · head
  i64 length, chunks;                  // positions of a chunk, a multiple of SUB unless there is one chunk
};

// v or g: dense in (heads, head), any distance between batch rows and between positions.
struct Rows {
  const ELEMENT* data;
  i64 batch_stride, stride;
};

struct Place {
  i64 b, chunk, column, from, to;
  bool live;
};

__device__ __forceinline__ Place place(const Shape& s) {
  i64 t = thread_of_grid();
  Place p;
  p.live = t < s.batch * s.chunks * s.columns;
  p.column = t % s.columns;
  i64 row = t / s.columns;
  p.chunk = row % s.chunks;
  p.b = row / s.chunks;
  p.from = p.chunk * s.length;
  p.to = p.from + s.length < s.positions ? p.from + s.length : s.positions;
  return p;
}

__device__ __forceinline__ const ELEMENT* column(const Rows& r, const Place& p) {
  return r.data + p.b * r.batch_stride + p.column;
}

__device__ __forceinline__ i64 carry_at(const Shape& s, const Place& p) {
  return (p.b * s.chunks + p.chunk) * s.columns + p.column;
}

// Whole scans of the chunk from zero: what leaves it going up, and what leaves it going down. Either may be null.
extern "C" __global__ void __launch_bounds__(THREADS) ends(Rows in, const ELEMENT* lambda, float* up, float* down, Shape s) {
  Place p = place(s);
  if (!p.live) return;
  const ELEMENT* x = column(in, p);
  float l = wide(lambda[p.column / s.head]);
  float above = 0.0f, below = 0.0f, power = 1.0f;
  i64 t = p.from;
  for (; t + SUB <= p.to; t += SUB) {
    float v[SUB];
#pragma unroll
    for (int j = 0; j < SUB; ++j) v[j] = wide(x[(t + j) * in.stride]);
#pragma unroll
    for (int j = 0; j < SUB; ++j) {
      above = l * above + v[j];
      below += power * v[j];
      power *= l;
    }
  }
  for (; t < p.to; ++t) {
    float v = wide(x[t * in.stride]);
    above = l * above + v;
    below += power * v;
    power *= l;
  }
  i64 at = carry_at(s, p);
  if (up) up[at] = above;
  if (down) down[at] = below;
}

__device__ __forceinline__ float power_of(float l, i64 n) {
  float result = 1.0f;
  for (; n > 0; n /= 2, l *= l)
    if (n % 2) result *= l;
  return result;
}

// Turns chunk ends into carries, in place. `first`: with `scaled`, the scan's value before the first position; without,
// what is added at the first position. One thread per column.
extern "C" __global__ void __launch_bounds__(THREADS) carries(float* ends, const ELEMENT* lambda, const ELEMENT* first, u32 scaled, u32 is_down, Shape s) {
  i64 t = thread_of_grid();
  if (t >= s.batch * s.columns) return;
  i64 b = t / s.columns, c = t % s.columns;
  float l = wide(lambda[c / s.head]), whole = power_of(l, s.length);
  i64 last_length = s.positions - (s.chunks - 1) * s.length;
  float added = first ? wide(first[t]) : 0.0f, carry = scaled ? added : 0.0f;
  for (i64 i = 0; i < s.chunks; ++i) {
    i64 k = is_down ? s.chunks - 1 - i : i;
    i64 n = k == s.chunks - 1 ? last_length : s.length;
    float* at = ends + (b * s.chunks + k) * s.columns + c;
    float end = *at;
    *at = carry;
    float decay = n == s.length ? whole : power_of(l, n);
    carry = end + decay * carry;
    if (i == 0 && !scaled && first) carry += power_of(l, n - 1) * added;
  }
}

// y up from the carries. `first` is the incoming state; `last` receives the outgoing one; either may be null.
extern "C" __global__ void __launch_bounds__(THREADS) scan_up(Rows in, const ELEMENT* lambda, const float* carry, const ELEMENT* first, ELEMENT* y, ELEMENT* last, Shape s) {
  Place p = place(s);
  if (!p.live) return;
  const ELEMENT* x = column(in, p);
  ELEMENT* out = y + p.b * s.positions * s.columns + p.column;
  float l = wide(lambda[p.column / s.head]);
  float value = s.chunks > 1 ? carry[carry_at(s, p)] : first ? wide(first[p.b * s.columns + p.column]) : 0.0f;
  i64 t = p.from;
  for (; t + SUB <= p.to; t += SUB) {
    float v[SUB];
#pragma unroll
    for (int j = 0; j < SUB; ++j) v[j] = wide(x[(t + j) * in.stride]);
#pragma unroll
    for (int j = 0; j < SUB; ++j) {
      value = l * value + v[j];
      out[(t + j) * s.columns] = narrow<ELEMENT>(value);
    }
  }
  for (; t < p.to; ++t) {
    value = l * value + wide(x[t * in.stride]);
    out[t * s.columns] = narrow<ELEMENT>(value);
  }
  if (last && p.chunk == s.chunks - 1) last[p.b * s.columns + p.column] = narrow<ELEMENT>(value);
}

// Reverse of the causal scan: the gradient runs down. `gstate` is added at the last position. λ's share of the chunk goes
// to `share`; `dfirst` receives the incoming state's gradient.
extern "C" __global__ void __launch_bounds__(THREADS) scan_down(Rows g, const ELEMENT* lambda, const float* carry, const ELEMENT* y, const ELEMENT* first, const ELEMENT* gstate, ELEMENT* dv, ELEMENT* dfirst, float* share, Shape s) {
  Place p = place(s);
  if (!p.live) return;
  const ELEMENT* x = column(g, p);
  i64 own = p.b * s.columns + p.column;
  const ELEMENT* scanned = y + p.b * s.positions * s.columns + p.column;
  ELEMENT* out = dv + p.b * s.positions * s.columns + p.column;
  float l = wide(lambda[p.column / s.head]);
  float before = first ? wide(first[own]) : 0.0f;
  bool top = p.chunk == s.chunks - 1;
  // What is added at the next position below.
  float added = top ? (gstate ? wide(gstate[own]) : 0.0f) : l * carry[carry_at(s, p)];
  float total = 0.0f, whole = 0.0f;
  i64 t = p.to;
  for (; t - SUB >= p.from; t -= SUB) {
    float v[SUB], w[SUB];
#pragma unroll
    for (int j = 0; j < SUB; ++j) {
      i64 at = t - 1 - j;
      v[j] = wide(x[at * g.stride]);
      w[j] = at > 0 ? wide(scanned[(at - 1) * s.columns]) : before;
    }
#pragma unroll
    for (int j = 0; j < SUB; ++j) {
      whole = v[j] + added;
      out[(t - 1 - j) * s.columns] = narrow<ELEMENT>(whole);
      total += whole * w[j];
      added = l * whole;
    }
  }
  for (; t > p.from; --t) {
    whole = wide(x[(t - 1) * g.stride]) + added;
    out[(t - 1) * s.columns] = narrow<ELEMENT>(whole);
    total += whole * (t > 1 ? wide(scanned[(t - 2) * s.columns]) : before);
    added = l * whole;
  }
  share[carry_at(s, p)] = total;
  if (dfirst && p.chunk == 0) dfirst[own] = narrow<ELEMENT>(added);
}

#define SUBS_MAX 16 // Runs of SUB positions in a chunk of a two-way scan, at most.

__device__ __forceinline__ int runs_of(const Place& p) { return (int)((p.to - p.from + SUB - 1) / SUB); }

// y = up + λ·down one position ahead. The up values at the start of each run are kept; then the runs are done
// again from the last to the first, up in registers and down along them.
extern "C" __global__ void __launch_bounds__(THREADS) both(Rows in, const ELEMENT* lambda, const float* up, const float* down, ELEMENT* y, Shape s) {
  __shared__ float kept[SUBS_MAX][THREADS];
  Place p = place(s);
  if (!p.live) return;
  const ELEMENT* x = column(in, p);
  ELEMENT* out = y + p.b * s.positions * s.columns + p.column;
  float l = wide(lambda[p.column / s.head]);
  float value = up ? up[carry_at(s, p)] : 0.0f, ahead = down ? down[carry_at(s, p)] : 0.0f;
  int runs = runs_of(p);
  for (int r = 0; r < runs; ++r) {
    kept[r][threadIdx.x] = value;
    for (i64 t = p.from + r * SUB; r + 1 < runs && t < p.from + (r + 1) * SUB; ++t) value = l * value + wide(x[t * in.stride]);
  }
  for (int r = runs - 1; r >= 0; --r) {
    float v[SUB], f[SUB];
    i64 from = p.from + r * SUB;
    value = kept[r][threadIdx.x];
#pragma unroll
    for (int j = 0; j < SUB; ++j) v[j] = from + j < p.to ? wide(x[(from + j) * in.stride]) : 0.0f;
#pragma unroll
    for (int j = 0; j < SUB; ++j) f[j] = value = l * value + v[j];
#pragma unroll
    for (int j = SUB - 1; j >= 0; --j) {
      if (from + j >= p.to) continue;
      float later = l * ahead;
      out[(from + j) * s.columns] = narrow<ELEMENT>(f[j] + later);
      ahead = later + v[j];
    }
  }
}

// Reverse of the two-way scan. Four scans: g and v, each up and down; λ's share at t is
// down(g)_t · up(v)_{t−1} + up(g)_t · down(v)_{t+1}.
extern "C" __global__ void __launch_bounds__(THREADS) both_back(Rows g, Rows in, const ELEMENT* lambda, const float* g_up, const float* g_down, const float* v_up, const float* v_down, ELEMENT* dv, float* share, Shape s) {
  __shared__ float kept_g[SUBS_MAX][THREADS], kept_v[SUBS_MAX][THREADS];
  Place p = place(s);
  if (!p.live) return;
  const ELEMENT *gx = column(g, p), *vx = column(in, p);
  ELEMENT* out = dv + p.b * s.positions * s.columns + p.column;
  float l = wide(lambda[p.column / s.head]);
  i64 at = carry_at(s, p);
  float gu = g_up ? g_up[at] : 0.0f, gd = g_down ? g_down[at] : 0.0f;
  float vu = v_up ? v_up[at] : 0.0f, vd = v_down ? v_down[at] : 0.0f;
  int runs = runs_of(p);
  for (int r = 0; r < runs; ++r) {
    kept_g[r][threadIdx.x] = gu;
    kept_v[r][threadIdx.x] = vu;
    for (i64 t = p.from + r * SUB; r + 1 < runs && t < p.from + (r + 1) * SUB; ++t) {
      gu = l * gu + wide(gx[t * g.stride]);
      vu = l * vu + wide(vx[t * in.stride]);
    }
  }
  float total = 0.0f;
  for (int r = runs - 1; r >= 0; --r) {
    float gs[SUB], vs[SUB], gf[SUB], vb[SUB];
    i64 from = p.from + r * SUB;
    gu = kept_g[r][threadIdx.x];
    vu = kept_v[r][threadIdx.x];
#pragma unroll
    for (int j = 0; j < SUB; ++j) {
      gs[j] = from + j < p.to ? wide(gx[(from + j) * g.stride]) : 0.0f;
      vs[j] = from + j < p.to ? wide(vx[(from + j) * in.stride]) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < SUB; ++j) {
      gf[j] = gu = l * gu + gs[j];
      vb[j] = vu; // up(v) one position before.
      vu = l * vu + vs[j];
    }
#pragma unroll
    for (int j = SUB - 1; j >= 0; --j) {
      if (from + j >= p.to) continue;
      float later = l * gd, whole = gs[j] + later;
      total += whole * vb[j] + gf[j] * vd;
      out[(from + j) * s.columns] = narrow<ELEMENT>(gf[j] + later);
      gd = whole;
      vd = vs[j] + l * vd;
    }
  }
  share[at] = total;
}

// dλ of one head per block: all shares of its columns, in a fixed order.
extern "C" __global__ void __launch_bounds__(256) lambda_sum(const float* share, ELEMENT* dlambda, Shape s) {
  __shared__ float scratch[32];
  i64 rows = s.batch * s.chunks, first = (i64)blockIdx.x * s.head;
  float total = 0.0f;
  for (i64 i = threadIdx.x; i < rows * s.head; i += 256) total += share[i / s.head * s.columns + first + i % s.head];
  total = over_row<256>(total, Sum(), scratch);
  if (threadIdx.x == 0) dlambda[blockIdx.x] = narrow<ELEMENT>(total);
}
