// Cross entropy over `classes` logits per row: the row's maximum and sum of exponentials in one pass, never a softmax in
// memory. THREADS threads share a row: 32 (four rows per block) or more (one row). Rows are read by packs of VEC; what is left of a
// row by single numbers.
//
// A row whose target is `ignored` has loss and gradient 0. A target outside the classes gives NaN: it must not go unseen.

#define ROWS (THREADS == 32 ? 4 : 1)

// max and Σ exp(x − max) of the numbers seen so far.
struct Tally {
  float max, sum;
};

__device__ __forceinline__ Tally merged(Tally a, Tally b) {
  Tally out;
  out.max = fmaxf(a.max, b.max);
  // While nothing but −∞ was seen the sum is 0, not exp(−∞ + ∞). NaN logits come in by the sum.
  if (out.max == -INFINITE) {
    out.sum = a.sum + b.sum;
    return out;
  }
  out.sum = a.sum * expf(a.max - out.max) + b.sum * expf(b.max - out.max);
  return out;
}

// A pack at once: one rescaling for all of it, and exponentials that do not wait for each other.
template <int WIDTH>
__device__ __forceinline__ Tally with(Tally t, const Pack<ELEMENT, WIDTH>& pack) {
  float x[WIDTH], max = t.max;
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) {
    x[j] = wide(pack.at[j]);
    max = fmaxf(max, x[j]);
  }
  // The largest counts as 1, also when it is infinite; −∞ as 0, also when there is nothing else. NaN stays NaN.
  float sum = t.max == max ? t.sum : t.sum * expf(t.max - max);
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) sum += x[j] == -INFINITE ? 0.0f : x[j] == max ? 1.0f : expf(x[j] - max);
  return {max, sum};
}

__device__ __forceinline__ Tally over_threads(Tally t, Tally* scratch) {
  for (int distance = 16; distance > 0; distance /= 2) {
    Tally other = {__shfl_xor_sync(FULL_WARP, t.max, distance), __shfl_xor_sync(FULL_WARP, t.sum, distance)};
    // Both partners merge in the same order, so that both have the same bits.
    bool low = (threadIdx.x & distance) == 0;
    t = merged(low ? t : other, low ? other : t);
  }
  if (THREADS <= 32) return t;
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = t;
  __syncthreads();
  t = scratch[0];
  for (int i = 1; i < THREADS / 32; ++i) t = merged(t, scratch[i]);
  return t;
}

extern "C" __global__ void __launch_bounds__(THREADS * ROWS) cross_entropy(const ELEMENT* logits, const i64* targets, float* loss, float* lse_out, i64 rows, i64 classes, i64 stride, i64 ignored) {
  __shared__ Tally scratch[32];
  for (i64 first = (i64)blockIdx.x * ROWS; first < rows; first += (i64)gridDim.x * ROWS) {
    i64 row = first + threadIdx.y;
    bool live = row < rows;
    const ELEMENT* x = logits + (live ? row * stride : 0);
    Tally t = {-INFINITE, 0.0f};
    if (live) {
      i64 whole = classes / VEC * VEC;
#pragma unroll 4
      for (i64 c = (i64)threadIdx.x * VEC; c < whole; c += THREADS * VEC) t = with<VEC>(t, load<ELEMENT, VEC>(x + c));
      for (i64 c = whole + threadIdx.x; c < classes; c += THREADS) t = with<1>(t, load<ELEMENT, 1>(x + c));
    }
    t = over_threads(t, scratch);
    if (!live || threadIdx.x != 0) continue;
    float lse = t.max + logf(t.sum);
    i64 target = targets[row];
    bool known = target >= 0 && target < classes;
    lse_out[row] = lse;
    loss[row] = target == ignored ? 0.0f : known ? lse - wide(x[target]) : NOT_A_NUMBER;
  }
}

__device__ __forceinline__ float slope(float x, float level, float grad, bool hit, bool known, bool ignored) {
  return ignored ? 0.0f : known ? grad * (expf(x - level) - (hit ? 1.0f : 0.0f)) : NOT_A_NUMBER;
}

// dlogits = g · (softmax − one-hot). `g` has one number per row, or one for all (`g_stride` 0). May write onto the logits.
extern "C" __global__ void cross_entropy_back(const float* g, i64 g_stride, const ELEMENT* logits, const i64* targets, const float* lse, ELEMENT* dlogits, i64 rows, i64 classes, i64 stride, i64 dstride, i64 ignored_id) {
  i64 packs = (classes + VEC - 1) / VEC;
  for (i64 p = thread_of_grid(); p < rows * packs; p += threads_of_grid()) {
    i64 row = p / packs, c = p % packs * VEC, target = targets[row];
    const ELEMENT* x = logits + row * stride + c;
    ELEMENT* d = dlogits + row * dstride + c;
    float grad = g[row * g_stride], level = lse[row];
    bool known = target >= 0 && target < classes, ignored = target == ignored_id;
    if (c + VEC > classes) {
      for (int j = 0; c + j < classes; ++j) d[j] = narrow<ELEMENT>(slope(wide(x[j]), level, grad, c + j == target, known, ignored));
      continue;
    }
    Pack<ELEMENT, VEC> from = load<ELEMENT, VEC>(x), to;
#pragma unroll
    for (int j = 0; j < VEC; ++j) to.at[j] = narrow<ELEMENT>(slope(wide(from.at[j]), level, grad, c + j == target, known, ignored));
    store<ELEMENT, VEC>(d, to);
  }
}
