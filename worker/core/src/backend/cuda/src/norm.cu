// Layer norm (CENTRED = 1) and RMS norm over rows of WIDTH elements, forward and backward, with the sum of a residual
// branch taken along. The branch, the normalised rows and their gradient may be of a 16-bit type beside f32 rows: LOW.
// GATED = 1: the norm of a product, behind a gate, instead.
//
// THREADS threads share a row: 32 (then a block has four rows, one per warp) or more (then one row). Each holds ITEMS packs
// of VEC elements in registers; statistics and sums are f32.

#define ROWS (THREADS == 32 ? 4 : 1)
#define ITEMS ((WIDTH + THREADS * VEC - 1) / (THREADS * VEC))

#if LOW == 1
typedef bf16 Branch;
#elif LOW == 2
typedef f16 Branch;
#else
typedef ELEMENT Branch;
#endif

typedef Pack<ELEMENT, VEC> Chunk;
typedef Pack<Branch, VEC> BranchChunk;

__device__ __forceinline__ int column_of(int item) { return (item * THREADS + (int)threadIdx.x) * VEC; }

// Mean and 1/σ, or 0 and 1/rms, of a row; `v` is 0 beyond it.
struct Level {
  float mean, rstd;
};

__device__ __forceinline__ Level level_of(const float (&v)[ITEMS][VEC], float eps, float* scratch) {
  float total = 0.0f, squares = 0.0f;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
#pragma unroll
    for (int j = 0; j < VEC; ++j) total += v[i][j];
  float mean = CENTRED ? over_row<THREADS>(total, Sum(), scratch) / WIDTH : 0.0f;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    bool inside = column_of(i) < WIDTH;
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      float d = v[i][j] - mean;
      squares += inside ? d * d : 0.0f;
    }
  }
  Level level = {mean, 1.0f / sqrtf(over_row<THREADS>(squares, Sum(), scratch) / WIDTH + eps)};
  return level;
}

// Means over a row of gw and of gw · x̂; both are 0 beyond it.
struct Means {
  float level, along;
};

__device__ __forceinline__ Means means_of(const float (&gw)[ITEMS][VEC], const float (&hat)[ITEMS][VEC], float* scratch) {
  float level = 0.0f, along = 0.0f;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      along += gw[i][j] * hat[i][j];
      level += gw[i][j];
    }
  along = over_row<THREADS>(along, Sum(), scratch) / WIDTH;
  Means means = {CENTRED ? over_row<THREADS>(level, Sum(), scratch) / WIDTH : 0.0f, along};
  return means;
}

// (gw − mean(gw) − x̂ · mean(gw · x̂)) / σ; rounded before anything is added, as where these are two operations.
__device__ __forceinline__ float reverse(float gw, float hat, Means means, float rstd) {
  return __fmul_rn(gw - means.level - hat * means.along, rstd);
}

// Adds the sums of a block's four rows up in its first warp, in order.
__device__ __forceinline__ void fold(float (&sums)[ITEMS][VEC]) {
  if (ROWS == 1) return;
  __shared__ float others[ROWS == 1 ? 1 : ROWS - 1][ITEMS * VEC * 32];
  __syncthreads();
  if (threadIdx.y > 0) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
#pragma unroll
      for (int j = 0; j < VEC; ++j) others[threadIdx.y - 1][(i * VEC + j) * 32 + threadIdx.x % 32] = sums[i][j];
  }
  __syncthreads();
  if (threadIdx.y > 0) return;
  for (int r = 0; r < ROWS - 1; ++r) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
#pragma unroll
      for (int j = 0; j < VEC; ++j) sums[i][j] += others[r][(i * VEC + j) * 32 + threadIdx.x % 32];
  }
}

// Each block adds up its rows' shares of dw and db and leaves them in its row of `partial`: first all of dw, then, with `bias`, all of db.
__device__ __forceinline__ void leave(float (&dw)[ITEMS][VEC], float (&db)[ITEMS][VEC], float* partial, bool bias) {
  fold(dw);
  if (bias) fold(db);
  if (threadIdx.y != 0) return;
  i64 groups = gridDim.x, group = blockIdx.x;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    int c = column_of(i);
    if (c >= WIDTH) continue;
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      partial[group * WIDTH + c + j] = dw[i][j];
      if (bias) partial[(groups + group) * WIDTH + c + j] = db[i][j];
    }
  }
}

// Sums `groups` rows of `partial` in a fixed order: blocks of 32 columns by 32 strides. Blocks past WIDTH/32 make db.
extern "C" __global__ void __launch_bounds__(1024) norm_sum(const float* partial, ELEMENT* dw, ELEMENT* db, i64 groups) {
  __shared__ float tile[32][33];
  constexpr int ACROSS = (WIDTH + 31) / 32;
  bool second = blockIdx.x >= ACROSS;
  const float* from = partial + (second ? groups * WIDTH : 0);
  int c = (int)(blockIdx.x % ACROSS) * 32 + (int)threadIdx.x;
  float total = 0.0f;
  if (c < WIDTH)
    for (i64 r = threadIdx.y; r < groups; r += 32) total += from[r * WIDTH + c];
  tile[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || c >= WIDTH) return;
  for (int i = 1; i < 32; ++i) total += tile[i][threadIdx.x];
  (second ? db : dw)[c] = narrow<ELEMENT>(total);
}

#if GATED

// Rounded before the mean is taken off it: a sum and a product in one would be off by what the mean was rounded.
__device__ __forceinline__ float product(Branch q, ELEMENT s) { return __fmul_rn(wide(q), wide(s)); }

// y = silu(gate) · (norm(q · s) · w + b). Rows of q and of gate may lie apart.
extern "C" __global__ void __launch_bounds__(THREADS * ROWS) gated_norm(const ELEMENT* s, const Branch* q, i64 q_stride, const Branch* gate, i64 gate_stride, const ELEMENT* w, const ELEMENT* b, Branch* y, float* mean_out, float* rstd_out, i64 rows, float eps) {
  __shared__ float scratch[32];
  for (i64 first = (i64)blockIdx.x * ROWS; first < rows; first += (i64)gridDim.x * ROWS) {
    i64 row = first + threadIdx.y;
    bool live = row < rows;
    float v[ITEMS][VEC];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      int c = column_of(i);
      bool inside = live && c < WIDTH;
      Chunk ps;
      BranchChunk pq;
      if (inside) {
        ps = load<ELEMENT, VEC>(s + row * WIDTH + c);
        pq = load<Branch, VEC>(q + row * q_stride + c);
      }
#pragma unroll
      for (int j = 0; j < VEC; ++j) v[i][j] = inside ? product(pq.at[j], ps.at[j]) : 0.0f;
    }
    Level level = level_of(v, eps, scratch);
    if (!live) continue;
    if (threadIdx.x == 0) {
      if (CENTRED) mean_out[row] = level.mean;
      rstd_out[row] = level.rstd;
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      int c = column_of(i);
      if (c >= WIDTH) continue;
      Chunk pw = load<ELEMENT, VEC>(w + c), pb;
      if (b) pb = load<ELEMENT, VEC>(b + c);
      BranchChunk on = load<Branch, VEC>(gate + row * gate_stride + c), out;
#pragma unroll
      for (int j = 0; j < VEC; ++j) {
        float normed = (v[i][j] - level.mean) * level.rstd * wide(pw.at[j]) + (b ? wide(pb.at[j]) : 0.0f), a = wide(on.at[j]);
        out.at[j] = narrow<Branch>(a * sigmoid(a) * normed);
      }
      store<Branch, VEC>(y + row * WIDTH + c, out);
    }
  }
}

// The gradients of s, q and gate, and shares of those of w and b in `partial`.
extern "C" __global__ void __launch_bounds__(THREADS * ROWS) gated_norm_back(const Branch* g, const ELEMENT* s, const Branch* q, i64 q_stride, const Branch* gate, i64 gate_stride, const float* mean_in, const float* rstd_in, const ELEMENT* w, const ELEMENT* b, ELEMENT* ds, Branch* dq, Branch* dgate, float* partial, i64 rows) {
  __shared__ float scratch[32];
  float dw[ITEMS][VEC] = {}, db[ITEMS][VEC] = {};
  for (i64 first = (i64)blockIdx.x * ROWS; first < rows; first += (i64)gridDim.x * ROWS) {
    i64 row = first + threadIdx.y;
    bool live = row < rows;
    float mean = live && CENTRED ? mean_in[row] : 0.0f, rstd = live ? rstd_in[row] : 0.0f;
    float hat[ITEMS][VEC], gw[ITEMS][VEC];
    Chunk ps[ITEMS];
    BranchChunk pq[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      int c = column_of(i);
      bool inside = live && c < WIDTH;
#pragma unroll
      for (int j = 0; j < VEC; ++j) hat[i][j] = gw[i][j] = 0.0f;
      if (!inside) continue;
      ps[i] = load<ELEMENT, VEC>(s + row * WIDTH + c);
      pq[i] = load<Branch, VEC>(q + row * q_stride + c);
      Chunk pw = load<ELEMENT, VEC>(w + c), pb;
      if (b) pb = load<ELEMENT, VEC>(b + c);
      BranchChunk pg = load<Branch, VEC>(g + row * WIDTH + c), on = load<Branch, VEC>(gate + row * gate_stride + c), out;
#pragma unroll
      for (int j = 0; j < VEC; ++j) {
        float factor = wide(pw.at[j]), a = wide(on.at[j]), share = sigmoid(a), grad = wide(pg.at[j]);
        hat[i][j] = (product(pq[i].at[j], ps[i].at[j]) - mean) * rstd;
        float normed = hat[i][j] * factor + (b ? wide(pb.at[j]) : 0.0f);
        out.at[j] = narrow<Branch>(grad * normed * share * (1.0f + a * (1.0f - share)));
        grad *= a * share;
        dw[i][j] += grad * hat[i][j];
        db[i][j] += grad;
        gw[i][j] = grad * factor;
      }
      store<Branch, VEC>(dgate + row * WIDTH + c, out);
    }
    Means means = means_of(gw, hat, scratch);
    if (!live) continue;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      int c = column_of(i);
      if (c >= WIDTH) continue;
      Chunk to_s;
      BranchChunk to_q;
#pragma unroll
      for (int j = 0; j < VEC; ++j) {
        float d = reverse(gw[i][j], hat[i][j], means, rstd);
        to_s.at[j] = narrow<ELEMENT>(d * wide(pq[i].at[j]));
        to_q.at[j] = narrow<Branch>(d * wide(ps[i].at[j]));
      }
      store<ELEMENT, VEC>(ds + row * WIDTH + c, to_s);
      store<Branch, VEC>(dq + row * WIDTH + c, to_q);
    }
  }
  leave(dw, db, partial, b != nullptr);
}

#else

// y = (x − mean) / σ · w + b. With `residual`, x + residual is normalised, and stored to `sum` first.
extern "C" __global__ void __launch_bounds__(THREADS * ROWS) norm_forward(const ELEMENT* x, const Branch* residual, const ELEMENT* w, const ELEMENT* b, ELEMENT* sum, Branch* y, float* mean_out, float* rstd_out, i64 rows, float eps) {
  __shared__ float scratch[32];
  for (i64 first = (i64)blockIdx.x * ROWS; first < rows; first += (i64)gridDim.x * ROWS) {
    i64 row = first + threadIdx.y;
    // A warp without a row goes along, for the barriers, and touches nothing.
    bool live = row < rows;
    float v[ITEMS][VEC];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      int c = column_of(i);
      bool inside = live && c < WIDTH;
      Chunk chunk;
      BranchChunk other;
      if (inside) chunk = load<ELEMENT, VEC>(x + row * WIDTH + c);
      if (inside && residual) {
        other = load<Branch, VEC>(residual + row * WIDTH + c);
#pragma unroll
        for (int j = 0; j < VEC; ++j) chunk.at[j] = narrow<ELEMENT>(wide(chunk.at[j]) + wide(other.at[j]));
        store<ELEMENT, VEC>(sum + row * WIDTH + c, chunk);
      }
#pragma unroll
      for (int j = 0; j < VEC; ++j) v[i][j] = inside ? wide(chunk.at[j]) : 0.0f;
    }
    Level level = level_of(v, eps, scratch);
    if (!live) continue;
    if (threadIdx.x == 0) {
      if (CENTRED) mean_out[row] = level.mean;
      rstd_out[row] = level.rstd;
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      int c = column_of(i);
      if (c >= WIDTH) continue;
      Chunk pw, pb;
      BranchChunk out;
      if (w) pw = load<ELEMENT, VEC>(w + c);
      if (b) pb = load<ELEMENT, VEC>(b + c);
#pragma unroll
      for (int j = 0; j < VEC; ++j) {
        float hat = (v[i][j] - level.mean) * level.rstd;
        if (w) hat *= wide(pw.at[j]);
        if (b) hat += wide(pb.at[j]);
        out.at[j] = narrow<Branch>(hat);
      }
      store<Branch, VEC>(y + row * WIDTH + c, out);
    }
  }
}

// dx = (gw − mean(gw) − x̂ · mean(gw · x̂)) / σ, plus `gsum`, the gradient that reaches the sum by the residual branch.
// `branch`, unless null, receives dx rounded.
// `w` null: no weight, no partial sums.
extern "C" __global__ void __launch_bounds__(THREADS * ROWS) norm_backward(const Branch* g, const ELEMENT* gsum, const ELEMENT* x, const float* mean_in, const float* rstd_in, const ELEMENT* w, ELEMENT* dx, Branch* branch, float* partial, i64 rows, u32 bias) {
  __shared__ float scratch[32];
  float dw[ITEMS][VEC] = {}, db[ITEMS][VEC] = {};
  for (i64 first = (i64)blockIdx.x * ROWS; first < rows; first += (i64)gridDim.x * ROWS) {
    i64 row = first + threadIdx.y;
    bool live = row < rows;
    float mean = live && CENTRED ? mean_in[row] : 0.0f, rstd = live ? rstd_in[row] : 0.0f;
    float hat[ITEMS][VEC], gw[ITEMS][VEC];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      int c = column_of(i);
      bool inside = live && c < WIDTH;
      Chunk px, pw;
      BranchChunk pg;
      if (inside) {
        px = load<ELEMENT, VEC>(x + row * WIDTH + c);
        pg = load<Branch, VEC>(g + row * WIDTH + c);
        if (w) pw = load<ELEMENT, VEC>(w + c);
      }
#pragma unroll
      for (int j = 0; j < VEC; ++j) {
        hat[i][j] = inside ? (wide(px.at[j]) - mean) * rstd : 0.0f;
        float grad = inside ? wide(pg.at[j]) : 0.0f;
        dw[i][j] += grad * hat[i][j];
        db[i][j] += grad;
        gw[i][j] = inside && w ? grad * wide(pw.at[j]) : grad;
      }
    }
    Means means = means_of(gw, hat, scratch);
    if (!live) continue;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      int c = column_of(i);
      if (c >= WIDTH) continue;
      Chunk other, out;
      BranchChunk rounded;
      if (gsum) other = load<ELEMENT, VEC>(gsum + row * WIDTH + c);
#pragma unroll
      for (int j = 0; j < VEC; ++j) {
        float d = reverse(gw[i][j], hat[i][j], means, rstd);
        if (gsum) d += wide(other.at[j]);
        out.at[j] = narrow<ELEMENT>(d);
        rounded.at[j] = narrow<Branch>(d);
      }
      store<ELEMENT, VEC>(dx + row * WIDTH + c, out);
      if (branch) store<Branch, VEC>(branch + row * WIDTH + c, rounded);
    }
  }
  if (w) leave(dw, db, partial, bias);
}

#endif
