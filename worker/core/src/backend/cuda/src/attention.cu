// Attention with a bias per key, a structural mask and modified scores, forward and backward, in tiles: no matrix of scores in memory.
//
// A block owns ROWS rows (queries, or keys in `attention_keys`), a warp 16 of them; the other side comes by in tiles of
// PASSING rows through shared memory. Products run on tensor cores in 16×8 tiles with f32 sums: one product of 16-bit
// operands, or three of tf32 parts of f32 operands (high·high, high·low, low·high), which keeps about 21 bits.
// Tiles that the mask hides are not visited. HEAD is the head's width; VEC elements go per load from memory. CAPPED and ALIBI
// say whether scores are modified: a source built without them computes nothing for them.
//
// Inside a tile of 16×8 sums, lane 4·g + t holds rows g and g + 8, columns 2·t and 2·t + 1.

#define ROWS 64
#define WARPS 4
#define WIDE ((HEAD + 15) / 16 * 16) // The head padded with zeros to whole products.
#define PITCH (WIDE + 8)             // Elements between rows in shared memory: no two lanes of a load on one bank.
#define STEP (ELEMENT_BYTES == 4 ? 8 : 16) // Depth of one product.
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

struct View {
  ELEMENT* data;
  i64 batch, head, row; // Distances; elements of a row are neighbours.
};

struct Mask {
  i64 causal;   // Not 0: keys up to the query.
  i64 window;   // Keys up to this distance; negative: any.
  i64 dilation; // Keys at a multiple of this distance; 1: any.
};

struct Problem {
  i64 batch, heads, queries, keys;
};

struct Range {
  i64 from, to;
};

__device__ __forceinline__ bool visible(const Mask& m, i64 query, i64 key) {
  i64 d = query - key;
  if (m.causal && d < 0) return false;
  if (m.window >= 0 && (d > m.window || -d > m.window)) return false;
  return m.dilation <= 1 || d % m.dilation == 0;
}

// What of `count` rows on the other side may be seen from rows first..last; `down` when those are keys.
__device__ __forceinline__ Range seen(const Mask& m, i64 first, i64 last, i64 count, bool from_keys) {
  Range r = {0, count};
  if (m.causal && !from_keys && last + 1 < r.to) r.to = last + 1;
  if (m.causal && from_keys && first > r.from) r.from = first;
  if (m.window >= 0 && first - m.window > r.from) r.from = first - m.window;
  if (m.window >= 0 && last + m.window + 1 < r.to) r.to = last + m.window + 1;
  return r;
}

// What is done to scores, in units of log 2.
struct Score {
  float factor; // On q·k.
  float cap;    // Of CAPPED sources; `factor` is then that inside tanh.
  float slope;  // Of ALIBI sources: the head's, per position of distance.
};

// A head's slope: 2^(−8(head+1)/P) with the largest power of two P up to `heads`; behind P heads every second slope of 2P.
__device__ __forceinline__ float slope(i64 head, i64 heads) {
  i64 whole = 1;
  while (2 * whole <= heads) whole *= 2;
  i64 powers = head < whole ? 2 * (head + 1) : 2 * (head - whole) + 1;
  return exp2f(-4.0f * (float)powers / (float)whole);
}

__device__ __forceinline__ Score score_of(i64 head, i64 heads, float scale, float cap) {
  Score m = {scale, 0.0f, 0.0f};
#if CAPPED
  m.factor = scale / cap, m.cap = cap * LOG2_E;
#endif
#if ALIBI
  m.slope = slope(head, heads) * LOG2_E;
#endif
  return m;
}

// The score of q·k without its bias; `bent` becomes tanh's value, whose 1 − bent² is the cap's derivative; without a cap it stays.
__device__ __forceinline__ float modified(const Score& m, float product, i64 query, i64 key, float& bent) {
#if CAPPED
  bent = tanhf(product * m.factor);
  float s = bent * m.cap;
#else
  float s = product * m.factor * LOG2_E;
#endif
#if ALIBI
  s -= m.slope * fabsf((float)(int)(query - key));
#endif
  return s;
}

struct Left {
#if ELEMENT_BYTES == 4
  float at[4];
#else
  u32 at[4];
#endif
};
struct Right {
#if ELEMENT_BYTES == 4
  float at[2];
#else
  u32 at[2];
#endif
};

__device__ __forceinline__ int lane() { return (int)threadIdx.x % 32; }

__device__ __forceinline__ u32 pair(ELEMENT low, ELEMENT high) {
  u32 out;
  Pack<ELEMENT, 2> both = {{low, high}};
  static_assert(sizeof(both) >= 4, "two elements");
  out = *reinterpret_cast<u32*>(&both);
  return out;
}

#if ON_DEVICE
__device__ __forceinline__ void product(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], bf16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void product(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], f16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Operands are tf32: f32 with 10 bits of mantissa.
__device__ __forceinline__ void product(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], float) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ u32 to_tf32(float x) {
  u32 y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
#else
template <class T>
inline void product(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], T) {
  device::product(c, a, b, sizeof(T) == 4, [](u16 bits) {
    T x;
    memcpy(&x, &bits, 2);
    return wide(x);
  });
}
inline u32 to_tf32(float x) { return (__float_as_uint(x) + 0x1000u) & 0xFFFFE000u; }
#endif

// c += a · b
__device__ __forceinline__ void multiply(float (&c)[4], const Left& a, const Right& b) {
#if ELEMENT_BYTES == 4
  u32 ah[4], al[4], bh[2], bl[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    ah[i] = to_tf32(a.at[i]);
    al[i] = to_tf32(a.at[i] - __uint_as_float(ah[i]));
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    bh[i] = to_tf32(b.at[i]);
    bl[i] = to_tf32(b.at[i] - __uint_as_float(bh[i]));
  }
  product(c, al, bh, ELEMENT());
  product(c, ah, bl, ELEMENT());
  product(c, ah, bh, ELEMENT());
#else
  product(c, a.at, b.at, ELEMENT());
#endif
}

// Left operand: rows row..row+16, depths k..k+STEP of a tile. In f32, lanes hold depths 2·t and 2·t + 1 where the
// instruction has t and t + 4; the right operand is permuted likewise, so the sums are the same.
__device__ __forceinline__ Left left(const ELEMENT* tile, int row, int k) {
  const ELEMENT* at = tile + (row + lane() / 4) * PITCH + k + lane() % 4 * 2;
  Left a;
#if ELEMENT_BYTES == 4
  Pack<float, 2> p = load<float, 2>(at), q = load<float, 2>(at + 8 * PITCH);
  a.at[0] = p.at[0], a.at[1] = q.at[0], a.at[2] = p.at[1], a.at[3] = q.at[1];
#else
  a.at[0] = *reinterpret_cast<const u32*>(at);
  a.at[1] = *reinterpret_cast<const u32*>(at + 8 * PITCH);
  a.at[2] = *reinterpret_cast<const u32*>(at + 8);
  a.at[3] = *reinterpret_cast<const u32*>(at + 8 * PITCH + 8);
#endif
  return a;
}

// Sums as a left operand: STEP columns from tile `first` on.
__device__ __forceinline__ Left left_of(const float (*sums)[4], int first) {
  Left a;
#if ELEMENT_BYTES == 4
  const float(&c)[4] = sums[first];
  a.at[0] = c[0], a.at[1] = c[2], a.at[2] = c[1], a.at[3] = c[3];
#else
  const float(&c)[4] = sums[first];
  const float(&d)[4] = sums[first + 1];
  a.at[0] = pair(narrow<ELEMENT>(c[0]), narrow<ELEMENT>(c[1]));
  a.at[1] = pair(narrow<ELEMENT>(c[2]), narrow<ELEMENT>(c[3]));
  a.at[2] = pair(narrow<ELEMENT>(d[0]), narrow<ELEMENT>(d[1]));
  a.at[3] = pair(narrow<ELEMENT>(d[2]), narrow<ELEMENT>(d[3]));
#endif
  return a;
}

// Right operand whose columns are rows n..n+8 of a tile, at depths k..k+STEP: the transposed tile.
__device__ __forceinline__ Right right_rows(const ELEMENT* tile, int n, int k) {
  const ELEMENT* at = tile + (n + lane() / 4) * PITCH + k + lane() % 4 * 2;
  Right b;
#if ELEMENT_BYTES == 4
  Pack<float, 2> p = load<float, 2>(at);
  b.at[0] = p.at[0], b.at[1] = p.at[1];
#else
  b.at[0] = *reinterpret_cast<const u32*>(at);
  b.at[1] = *reinterpret_cast<const u32*>(at + 8);
#endif
  return b;
}

// Right operand: rows k..k+STEP, columns n..n+8 of a tile.
__device__ __forceinline__ Right right(const ELEMENT* tile, int k, int n) {
  Right b;
#if ELEMENT_BYTES == 4
  const ELEMENT* at = tile + (k + lane() % 4 * 2) * PITCH + n + lane() / 4;
  b.at[0] = at[0], b.at[1] = at[PITCH];
#elif ON_DEVICE
  // Lanes 0 to 15 name the 16 rows of eight elements; the instruction hands out pairs along the rows' direction.
  const ELEMENT* row = tile + (k + lane() % 16) * PITCH + n;
  u32 address = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(b.at[0]), "=r"(b.at[1]) : "r"(address) : "memory");
#else
  const ELEMENT* at = tile + (k + lane() % 4 * 2) * PITCH + n + lane() / 4;
  b.at[0] = pair(at[0], at[PITCH]);
  b.at[1] = pair(at[8 * PITCH], at[9 * PITCH]);
#endif
  return b;
}

// Copies `rows` rows from `first` on into a tile; what is past `count`, or past the head's width, is 0.
__device__ __forceinline__ void bring(ELEMENT* tile, const ELEMENT* from, i64 row_stride, i64 first, i64 count, int rows) {
  constexpr int PACKS = WIDE / VEC;
  for (int i = (int)threadIdx.x; i < rows * PACKS; i += WARPS * 32) {
    int r = i / PACKS, c = i % PACKS * VEC;
    Pack<ELEMENT, VEC> pack = {};
    if (first + r < count && c < HEAD) pack = load<ELEMENT, VEC>(from + (first + r) * row_stride + c);
    store<ELEMENT, VEC>(tile + r * PITCH + c, pack);
  }
}

// sums = left rows · tile rows transposed, over the head's width.
template <int TILES>
__device__ __forceinline__ void scores(float (&sums)[TILES][4], const ELEMENT* own, int row, const ELEMENT* tile) {
#pragma unroll
  for (int j = 0; j < TILES; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[j][i] = 0.0f;
#pragma unroll
  for (int k = 0; k < WIDE; k += STEP) {
    Left a = left(own, row, k);
#pragma unroll
    for (int j = 0; j < TILES; ++j) multiply(sums[j], a, right_rows(tile, 8 * j, k));
  }
}

// out += sums · tile.
template <int TILES>
__device__ __forceinline__ void gather(float (&out)[WIDE / 8][4], const float (&sums)[TILES][4], const ELEMENT* tile) {
#pragma unroll
  for (int k = 0; k < 8 * TILES; k += STEP) {
    Left a = left_of(sums, k / 8);
#pragma unroll
    for (int j = 0; j < WIDE / 8; ++j) multiply(out[j], a, right(tile, k, 8 * j));
  }
}

__device__ __forceinline__ float over_four(float x) {
  x += __shfl_xor_sync(FULL_WARP, x, 1);
  return x + __shfl_xor_sync(FULL_WARP, x, 2);
}

// Writes 16 rows of sums, times `factor[half]`.
__device__ __forceinline__ void leave(const float (&out)[WIDE / 8][4], const float (&factor)[2], ELEMENT* to, i64 row_stride, i64 first, i64 count) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    i64 row = first + lane() / 4 + 8 * half;
    if (row >= count) continue;
#pragma unroll
    for (int j = 0; j < WIDE / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int c = 8 * j + lane() % 4 * 2 + i;
        if (c < HEAD) to[row * row_stride + c] = narrow<ELEMENT>(out[j][2 * half + i] * factor[half]);
      }
  }
}

struct Where {
  i64 b, h, first; // Batch row, head, first own row.
  int warp_row;    // First row of the warp inside the block.
};

__device__ __forceinline__ Where where(const Problem& p, i64 rows) {
  i64 tiles = (rows + ROWS - 1) / ROWS, index = blockIdx.x;
  Where w;
  w.first = index % tiles * ROWS;
  w.h = index / tiles % p.heads;
  w.b = index / tiles / p.heads;
  w.warp_row = (int)threadIdx.x / 32 * 16;
  return w;
}

__device__ __forceinline__ ELEMENT* head_of(const View& v, const Where& w) { return v.data + w.b * v.batch + w.h * v.head; }

// Bias of a tile's keys in units of log 2, to shared memory.
__device__ __forceinline__ void bring_bias(float* to, const ELEMENT* bias, i64 first, i64 keys, int count) {
  for (int i = (int)threadIdx.x; i < count; i += WARPS * 32)
    to[i] = bias && first + i < keys ? wide(bias[first + i]) * LOG2_E : 0.0f;
}

#define FORWARD (ELEMENT_BYTES == 4 ? 32 : 64)  // Keys of a passing tile.
#define BACKWARD (ELEMENT_BYTES == 4 ? 16 : 32) // Rows of a passing tile, backward.

// out = softmax(modified(q·kᵀ·scale) + bias) · v and the log-sum-exp of each query's scores. A query that sees no key gives NaN.
extern "C" __global__ void __launch_bounds__(WARPS * 32) attention(View q, View k, View v, const ELEMENT* bias, i64 bias_stride, View out, float* lse, Problem p, Mask mask, float scale, float cap) {
  DYNAMIC_SHARED(memory);
  __shared__ float key_bias[FORWARD];
  ELEMENT *own = reinterpret_cast<ELEMENT*>(memory), *keys = own + ROWS * PITCH, *values = keys + FORWARD * PITCH;
  Where w = where(p, p.queries);
  const Score m = score_of(w.h, p.heads, scale, cap);
  const ELEMENT *from_k = head_of(k, w), *from_v = head_of(v, w);
  const ELEMENT* row_bias = bias ? bias + w.b * bias_stride : nullptr;
  bring(own, head_of(q, w), q.row, w.first, p.queries, ROWS);
  float sums[WIDE / 8][4] = {}, top[2] = {-INFINITE, -INFINITE}, weight[2] = {0.0f, 0.0f};
  i64 last = w.first + ROWS < p.queries ? w.first + ROWS - 1 : p.queries - 1;
  Range r = seen(mask, w.first, last, p.keys, false);
  for (i64 at = r.from; at < r.to; at += FORWARD) {
    __syncthreads();
    bring(keys, from_k, k.row, at, p.keys, FORWARD);
    bring(values, from_v, v.row, at, p.keys, FORWARD);
    bring_bias(key_bias, row_bias, at, p.keys, FORWARD);
    __syncthreads();
    float s[FORWARD / 8][4];
    scores(s, own, w.warp_row, keys);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      i64 query = w.first + w.warp_row + lane() / 4 + 8 * half;
      float high = -INFINITE;
#pragma unroll
      for (int j = 0; j < FORWARD / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          int c = 8 * j + lane() % 4 * 2 + i;
          float &x = s[j][2 * half + i], bent = 0.0f;
          bool sees = at + c < p.keys && visible(mask, query, at + c);
          x = sees ? modified(m, x, query, at + c, bent) + key_bias[c] : -INFINITE;
          high = fmaxf(high, x);
        }
      high = fmaxf(high, __shfl_xor_sync(FULL_WARP, high, 1));
      high = fmaxf(high, __shfl_xor_sync(FULL_WARP, high, 2));
      high = fmaxf(high, top[half]);
      // Nothing seen yet: measure from 0, so that −∞ − (−∞) does not arise.
      float base = high == -INFINITE ? 0.0f : high;
      float shrink = exp2f(top[half] - base);
      top[half] = high;
      weight[half] *= shrink;
#pragma unroll
      for (int j = 0; j < FORWARD / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = s[j][2 * half + i];
          x = exp2f(x - base);
          weight[half] += x;
        }
#pragma unroll
      for (int j = 0; j < WIDE / 8; ++j) sums[j][2 * half] *= shrink, sums[j][2 * half + 1] *= shrink;
    }
    gather(sums, s, values);
  }
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float all = over_four(weight[half]);
    i64 query = w.first + w.warp_row + lane() / 4 + 8 * half;
    factor[half] = 1.0f / all;
    // No weight at all: NaN, as a softmax over nothing.
    if (all == 0.0f) factor[half] = NOT_A_NUMBER;
    if (query < p.queries && lane() % 4 == 0)
      lse[(w.b * p.heads + w.h) * p.queries + query] = (top[half] + log2f(all)) * LN_2;
  }
  leave(sums, factor, head_of(out, w), out.row, w.first + w.warp_row, p.queries);
}

// delta = Σ g · out of each query: a warp per query.
extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_delta(View g, View out, float* delta, Problem p) {
  i64 row = (i64)blockIdx.x * WARPS + threadIdx.x / 32;
  if (row >= p.batch * p.heads * p.queries) return;
  i64 query = row % p.queries, h = row / p.queries % p.heads, b = row / p.queries / p.heads;
  const ELEMENT* a = g.data + b * g.batch + h * g.head + query * g.row;
  const ELEMENT* o = out.data + b * out.batch + h * out.head + query * out.row;
  float total = 0.0f;
  for (int c = lane(); c < HEAD; c += 32) total += wide(a[c]) * wide(o[c]);
  total = over_warp(total, Sum());
  if (lane() == 0) delta[row] = total;
}

// The gradient of q. Weights come again from the scores and their log-sum-exp.
extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_queries(View q, View k, View v, const ELEMENT* bias, i64 bias_stride, View g, const float* lse, const float* delta, View dq, Problem p, Mask mask, float scale, float cap) {
  DYNAMIC_SHARED(memory);
  __shared__ float key_bias[BACKWARD];
  ELEMENT *own = reinterpret_cast<ELEMENT*>(memory), *own_g = own + ROWS * PITCH;
  ELEMENT *keys = own_g + ROWS * PITCH, *values = keys + BACKWARD * PITCH;
  Where w = where(p, p.queries);
  const Score m = score_of(w.h, p.heads, scale, cap);
  const ELEMENT *from_k = head_of(k, w), *from_v = head_of(v, w);
  const ELEMENT* row_bias = bias ? bias + w.b * bias_stride : nullptr;
  bring(own, head_of(q, w), q.row, w.first, p.queries, ROWS);
  bring(own_g, head_of(g, w), g.row, w.first, p.queries, ROWS);
  float level[2], share[2], sums[WIDE / 8][4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    i64 query = w.first + w.warp_row + lane() / 4 + 8 * half, at = (w.b * p.heads + w.h) * p.queries + query;
    level[half] = query < p.queries ? lse[at] * LOG2_E : 0.0f;
    share[half] = query < p.queries ? delta[at] : 0.0f;
  }
  i64 last = w.first + ROWS < p.queries ? w.first + ROWS - 1 : p.queries - 1;
  Range r = seen(mask, w.first, last, p.keys, false);
  for (i64 at = r.from; at < r.to; at += BACKWARD) {
    __syncthreads();
    bring(keys, from_k, k.row, at, p.keys, BACKWARD);
    bring(values, from_v, v.row, at, p.keys, BACKWARD);
    bring_bias(key_bias, row_bias, at, p.keys, BACKWARD);
    __syncthreads();
    float s[BACKWARD / 8][4], d[BACKWARD / 8][4];
    scores(s, own, w.warp_row, keys);
    scores(d, own_g, w.warp_row, values);
#pragma unroll
    for (int j = 0; j < BACKWARD / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int c = 8 * j + lane() % 4 * 2 + i % 2;
        i64 query = w.first + w.warp_row + lane() / 4 + 8 * (i / 2);
        bool sees = query < p.queries && at + c < p.keys && visible(mask, query, at + c);
        float bent = 0.0f;
        float weight = sees ? exp2f(modified(m, s[j][i], query, at + c, bent) + key_bias[c] - level[i / 2]) : 0.0f;
        s[j][i] = sees ? weight * (d[j][i] - share[i / 2]) * (1.0f - bent * bent) : 0.0f;
      }
    gather(sums, s, keys);
  }
  float factor[2] = {scale, scale};
  leave(sums, factor, head_of(dq, w), dq.row, w.first + w.warp_row, p.queries);
}

// The gradients of k and v, and for each (batch row, head, key) the share of the bias's gradient (`dbias` may be null).
extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_keys(View q, View k, View v, const ELEMENT* bias, i64 bias_stride, View g, const float* lse, const float* delta, View dk, View dv, float* dbias, Problem p, Mask mask, float scale, float cap) {
  DYNAMIC_SHARED(memory);
  __shared__ float level[BACKWARD], share[BACKWARD];
  ELEMENT *own = reinterpret_cast<ELEMENT*>(memory), *own_v = own + ROWS * PITCH;
  ELEMENT *queries = own_v + ROWS * PITCH, *grads = queries + BACKWARD * PITCH;
  Where w = where(p, p.keys);
  const Score m = score_of(w.h, p.heads, scale, cap);
  const ELEMENT *from_q = head_of(q, w), *from_g = head_of(g, w);
  bring(own, head_of(k, w), k.row, w.first, p.keys, ROWS);
  bring(own_v, head_of(v, w), v.row, w.first, p.keys, ROWS);
  float own_bias[2], bias_sum[2] = {0.0f, 0.0f}, sums_k[WIDE / 8][4] = {}, sums_v[WIDE / 8][4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    i64 key = w.first + w.warp_row + lane() / 4 + 8 * half;
    own_bias[half] = bias && key < p.keys ? wide(bias[w.b * bias_stride + key]) * LOG2_E : 0.0f;
  }
  const i64 row = (w.b * p.heads + w.h) * p.queries;
  i64 last = w.first + ROWS < p.keys ? w.first + ROWS - 1 : p.keys - 1;
  Range r = seen(mask, w.first, last, p.queries, true);
  for (i64 at = r.from; at < r.to; at += BACKWARD) {
    __syncthreads();
    bring(queries, from_q, q.row, at, p.queries, BACKWARD);
    bring(grads, from_g, g.row, at, p.queries, BACKWARD);
    for (int i = (int)threadIdx.x; i < BACKWARD; i += WARPS * 32) {
      level[i] = at + i < p.queries ? lse[row + at + i] * LOG2_E : 0.0f;
      share[i] = at + i < p.queries ? delta[row + at + i] : 0.0f;
    }
    __syncthreads();
    float s[BACKWARD / 8][4], d[BACKWARD / 8][4];
    scores(s, own, w.warp_row, queries);
    scores(d, own_v, w.warp_row, grads);
#pragma unroll
    for (int j = 0; j < BACKWARD / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int c = 8 * j + lane() % 4 * 2 + i % 2;
        i64 key = w.first + w.warp_row + lane() / 4 + 8 * (i / 2);
        bool sees = key < p.keys && at + c < p.queries && visible(mask, at + c, key);
        float bent = 0.0f;
        s[j][i] = sees ? exp2f(modified(m, s[j][i], at + c, key, bent) + own_bias[i / 2] - level[c]) : 0.0f;
        d[j][i] = sees ? s[j][i] * (d[j][i] - share[c]) : 0.0f;
        bias_sum[i / 2] += d[j][i]; // The bias is added behind the cap.
        d[j][i] *= 1.0f - bent * bent;
      }
    gather(sums_v, s, grads);
    gather(sums_k, d, queries);
  }
  float factor[2] = {scale, scale}, one[2] = {1.0f, 1.0f};
  leave(sums_k, factor, head_of(dk, w), dk.row, w.first + w.warp_row, p.keys);
  leave(sums_v, one, head_of(dv, w), dv.row, w.first + w.warp_row, p.keys);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float all = over_four(bias_sum[half]);
    i64 key = w.first + w.warp_row + lane() / 4 + 8 * half;
    if (dbias && lane() % 4 == 0 && key < p.keys) dbias[(w.b * p.heads + w.h) * p.keys + key] = all;
  }
}
