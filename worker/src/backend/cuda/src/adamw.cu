// AdamW over many flat arrays in one launch, and the squared norm of many gradients with a look for numbers that are not
// finite. ELEMENT is the gradient's type; weights and moments are f32.
//
// Per element, with g the gradient times `gradient`:
//   p ← p · shrink (decayed arrays)   m ← m + first·(g − m)   v ← v + second·(g² − v)
//   p ← p + m·update / (√v·spread + ε)

#define THREADS 256
#define PER_BLOCK 4096 // Elements of an array a block takes.
#define ARRAYS_MAX 56  // Arrays of one launch: the table travels in the kernel's arguments, 4 KiB at most.

struct Array {
  float* p;
  float* m;
  float* v;
  ELEMENT* g;
  bf16* shadow; // Receives p in bf16, or null.
  i64 count;
  i64 decays;
  i64 first_block; // Blocks of the arrays before this one.
};

struct Table {
  i64 arrays, blocks;
  Array at[ARRAYS_MAX];
};

// Numbers of one step, made on the device by `step_numbers`.
struct Numbers {
  float gradient, first, second, shrink, update, spread, skip, eps;
};

__device__ __forceinline__ const Array& array_of(const Table& table, i64 block) {
  i64 low = 0, high = table.arrays - 1;
  while (low < high) {
    i64 middle = (low + high + 1) / 2;
    if (table.at[middle].first_block <= block) low = middle;
    else high = middle - 1;
  }
  return table.at[low];
}

struct Settings {
  double beta1, beta2, eps, decay;
};

__device__ __forceinline__ double scalar(const void* p, u32 is_wide) {
  return is_wide ? *(const double*)p : (double)*(const float*)p;
}

// One thread. `step` counts this step already; `factor` and `skip` may be null (1 and 0). Bits of `kinds`: which of step,
// lr, factor, skip are f64 rather than f32.
extern "C" __global__ void step_numbers(const void* step, const void* lr, const void* factor, const void* skip, Numbers* out, Settings s, u32 kinds) {
  double t = scalar(step, kinds & 1), rate = scalar(lr, kinds & 2);
  Numbers n;
  n.gradient = factor ? (float)scalar(factor, kinds & 4) : 1.0f;
  n.first = (float)(1.0 - s.beta1);
  n.second = (float)(1.0 - s.beta2);
  n.shrink = (float)(1.0 - rate * s.decay);
  // No step taken yet: 0/0 stays away.
  n.update = (float)(-rate / fmax(1.0 - pow(s.beta1, t), 1e-300));
  n.spread = (float)(1.0 / sqrt(fmax(1.0 - pow(s.beta2, t), 1e-300)));
  n.skip = skip ? (float)scalar(skip, kinds & 8) : 0.0f;
  n.eps = (float)s.eps;
  *out = n;
}

// a + w·(b − a), from the nearer end, as libtorch does it.
__device__ __forceinline__ float between(float a, float b, float w) {
  float d = b - a;
  return w < 0.5f ? a + w * d : b - d * (1.0f - w);
}

// With `keep_gradient` the scaled gradient is stored back.
extern "C" __global__ void __launch_bounds__(THREADS) adamw(const __grid_constant__ Table table, const Numbers* numbers, u32 keep_gradient) {
  Numbers n = *numbers;
  if (n.skip != 0.0f) return;
  i64 block = blockIdx.x;
  const Array& a = array_of(table, block);
  i64 from = (block - a.first_block) * PER_BLOCK;
  i64 to = from + PER_BLOCK < a.count ? from + PER_BLOCK : a.count;
  float shrink = a.decays ? n.shrink : 1.0f;
  for (i64 i = from + threadIdx.x * VEC; i < to; i += THREADS * VEC) {
    // Arrays that are loaded in packs hold whole packs.
    Pack<float, VEC> p = load<float, VEC>(a.p + i), m = load<float, VEC>(a.m + i), v = load<float, VEC>(a.v + i);
    Pack<ELEMENT, VEC> g = load<ELEMENT, VEC>(a.g + i);
    Pack<bf16, VEC> shadow;
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      float grad = wide(g.at[j]) * n.gradient;
      g.at[j] = narrow<ELEMENT>(grad);
      float first = between(m.at[j], grad, n.first);
      float second = between(v.at[j], grad * grad, n.second);
      float denominator = sqrtf(second) * n.spread + n.eps;
      float weight = p.at[j] * shrink + first * n.update / denominator;
      m.at[j] = first;
      v.at[j] = second;
      p.at[j] = weight;
      shadow.at[j] = narrow<bf16>(weight);
    }
    store<float, VEC>(a.p + i, p);
    store<float, VEC>(a.m + i, m);
    store<float, VEC>(a.v + i, v);
    if (keep_gradient) store<ELEMENT, VEC>(a.g + i, g);
    if (a.shadow) store<bf16, VEC>(a.shadow + i, shadow);
  }
}

// Σ g² of each block's elements. Squares of f32 are added in f64: no finite gradient overflows.
extern "C" __global__ void __launch_bounds__(THREADS) squares(const __grid_constant__ Table table, double* partial) {
  __shared__ double scratch[THREADS];
  i64 block = blockIdx.x;
  const Array& a = array_of(table, block);
  i64 from = (block - a.first_block) * PER_BLOCK;
  i64 to = from + PER_BLOCK < a.count ? from + PER_BLOCK : a.count;
  double total = 0.0;
  for (i64 i = from + threadIdx.x * VEC; i < to; i += THREADS * VEC) {
    Pack<ELEMENT, VEC> g = load<ELEMENT, VEC>(a.g + i);
#pragma unroll
    for (int j = 0; j < VEC; ++j) total += (double)wide(g.at[j]) * (double)wide(g.at[j]);
  }
  scratch[threadIdx.x] = total;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) partial[block] = scratch[0];
}

// norm = √Σ partial, found = 1 if it is not finite. One block.
extern "C" __global__ void __launch_bounds__(THREADS) norm_of(const double* partial, i64 count, double* norm, float* found) {
  __shared__ double scratch[THREADS];
  double total = 0.0;
  for (i64 i = threadIdx.x; i < count; i += THREADS) total += partial[i];
  scratch[threadIdx.x] = total;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  *norm = sqrt(scratch[0]);
  *found = scratch[0] - scratch[0] == 0.0 ? 0.0f : 1.0f;
}
