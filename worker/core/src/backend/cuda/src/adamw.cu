// AdamW over many flat arrays in one launch, the numbers of its step, and the norm of many gradients, which is not finite
// if one of their elements is not; the average of the weights, and zeros. ELEMENT is the gradient's type; weights, moments
// and averages are f32. HALF_SHADOW: the weights' copies are f16, else bf16.
//
// Per element, with g the gradient times `gradient`:
//   p ← p · shrink (decayed arrays)   m ← m + first·(g − m)   v ← v + second·(g² − v)
//   p ← p + m·update / (√v·spread + ε)

#define THREADS 256
#define PER_BLOCK 4096 // Elements of an array a block takes.
#define ARRAYS_MAX 56  // Arrays of one launch: the table travels in the kernel's arguments, 4 KiB at most.

#if HALF_SHADOW
typedef f16 low;
#else
typedef bf16 low;
#endif

struct Array {
  float* p;
  float* m;
  float* v;
  ELEMENT* g;
  low* shadow; // Receives p in low precision, or null.
  float* average; // Moves by the share to p, or null.
  i64 count;
  i64 decays;
  i64 first_block; // Blocks of the arrays before this one.
};

struct Table {
  i64 arrays, blocks;
  Array at[ARRAYS_MAX];
};

// Numbers of one step, made on the device by `step_scalars`; their order is op::optim's.
struct Numbers {
  float gradient, first, second, shrink, update, spread;
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
  double beta1, beta2, decay, clip;
};

// Nothing divides by 0 while no step has been taken.
__device__ __forceinline__ double falling(double beta, double steps) { return fmax(1.0 - pow(beta, steps), 2.2250738585072014e-308); }

// One thread. The norm of the summed gradient and what to divide it by → the numbers of the step, the norm of the mean
// gradient, and 1 if the step is taken: it is not when the norm is not finite. `steps` and `skipped` count.
extern "C" __global__ void step_scalars(const double* norm, const double* count, const double* rate, double* steps, double* skipped, Numbers* out, double* mean_norm, double* taken_out, Settings s) {
  double inverse = 1.0 / fmax(*count, 1.0), mean = *norm * inverse;
  bool finite = mean - mean == 0.0;
  double taken = finite ? 1.0 : 0.0;
  *steps += taken;
  *skipped += 1.0 - taken;
  double gradient = inverse;
  if (s.clip > 0.0) gradient = fmin(s.clip / (mean + 1e-6), 1.0) * inverse;
  Numbers n;
  n.gradient = finite ? (float)gradient : 0.0f;
  n.first = (float)(taken * (1.0 - s.beta1));
  n.second = (float)(taken * (1.0 - s.beta2));
  n.shrink = (float)(1.0 - taken * *rate * s.decay);
  n.update = (float)(-taken * *rate / falling(s.beta1, *steps));
  n.spread = (float)(1.0 / sqrt(falling(s.beta2, *steps)));
  *out = n;
  *mean_norm = mean;
  *taken_out = taken;
}

// a + w·(b − a), from the nearer end, as libtorch does it.
__device__ __forceinline__ float between(float a, float b, float w) {
  float d = b - a;
  return w < 0.5f ? a + w * d : b - d * (1.0f - w);
}

// A refused step (first = 0) leaves everything as it is.
extern "C" __global__ void __launch_bounds__(THREADS) adamw(const __grid_constant__ Table table, const Numbers* numbers, const float* share, float eps) {
  Numbers n = *numbers;
  if (n.first == 0.0f) return;
  i64 block = blockIdx.x;
  const Array& a = array_of(table, block);
  i64 from = (block - a.first_block) * PER_BLOCK;
  i64 to = from + PER_BLOCK < a.count ? from + PER_BLOCK : a.count;
  float shrink = a.decays ? n.shrink : 1.0f, moves = a.average ? *share : 0.0f;
  for (i64 i = from + threadIdx.x * VEC; i < to; i += THREADS * VEC) {
    // Arrays that are loaded in packs hold whole packs.
    Pack<float, VEC> p = load<float, VEC>(a.p + i), m = load<float, VEC>(a.m + i), v = load<float, VEC>(a.v + i);
    Pack<ELEMENT, VEC> g = load<ELEMENT, VEC>(a.g + i);
    Pack<low, VEC> shadow;
    Pack<float, VEC> average;
    if (a.average) average = load<float, VEC>(a.average + i);
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      float grad = wide(g.at[j]) * n.gradient;
      float first = between(m.at[j], grad, n.first);
      float second = between(v.at[j], grad * grad, n.second);
      float denominator = sqrtf(second) * n.spread + eps;
      float weight = p.at[j] * shrink + first * n.update / denominator;
      m.at[j] = first;
      v.at[j] = second;
      p.at[j] = weight;
      shadow.at[j] = narrow<low>(weight);
      if (a.average) average.at[j] = between(average.at[j], weight, moves);
    }
    store<float, VEC>(a.p + i, p);
    store<float, VEC>(a.m + i, m);
    store<float, VEC>(a.v + i, v);
    if (a.shadow) store<low, VEC>(a.shadow + i, shadow);
    if (a.average) store<float, VEC>(a.average + i, average);
  }
}

// Σ g² of each block's elements. Squares of f32 are added in f64: no finite gradient overflows.
extern "C" __global__ void __launch_bounds__(THREADS) squares(const __grid_constant__ Table table, double* partial) {
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
  total = sum_of_block<THREADS>(total);
  if (threadIdx.x == 0) partial[block] = total;
}

// norm = √(Σ partial + before²), or √Σ partial. One block.
extern "C" __global__ void __launch_bounds__(THREADS) norm_of(const double* partial, i64 count, const double* before, double* norm) {
  double total = before && threadIdx.x == 0 ? *before * *before : 0.0;
  for (i64 i = threadIdx.x; i < count; i += THREADS) total += partial[i];
  total = sum_of_block<THREADS>(total);
  if (threadIdx.x == 0) *norm = sqrt(total);
}

// One thread. Counts an update, and gives what an average moves by: (1 − d)/(1 − dᵗ), its limit 1/t for d = 1, or 0 for a step that
// was not taken.
extern "C" __global__ void average_share(double* updates, const double* taken, float* share, double decay) {
  bool moves = *taken > 0.5;
  if (moves) *updates += 1.0;
  double fading = decay < 1.0 ? (1.0 - decay) / (1.0 - pow(decay, *updates)) : 1.0 / *updates;
  *share = moves ? (float)fading : 0.0f;
}

// average ← average + share·(weights − average); p is the average, m the weights.
extern "C" __global__ void __launch_bounds__(THREADS) average(const __grid_constant__ Table table, const float* share) {
  float w = *share;
  i64 block = blockIdx.x;
  const Array& a = array_of(table, block);
  i64 from = (block - a.first_block) * PER_BLOCK;
  i64 to = from + PER_BLOCK < a.count ? from + PER_BLOCK : a.count;
  for (i64 i = from + threadIdx.x * VEC; i < to; i += THREADS * VEC) {
    Pack<float, VEC> p = load<float, VEC>(a.p + i), weights = load<float, VEC>(a.m + i);
#pragma unroll
    for (int j = 0; j < VEC; ++j) p.at[j] = between(p.at[j], weights.at[j], w);
    store<float, VEC>(a.p + i, p);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) zero(const __grid_constant__ Table table) {
  i64 block = blockIdx.x;
  const Array& a = array_of(table, block);
  i64 from = (block - a.first_block) * PER_BLOCK;
  i64 to = from + PER_BLOCK < a.count ? from + PER_BLOCK : a.count;
  Pack<ELEMENT, VEC> nothing;
#pragma unroll
  for (int j = 0; j < VEC; ++j) nothing.at[j] = narrow<ELEMENT>(0.0f);
  for (i64 i = from + threadIdx.x * VEC; i < to; i += THREADS * VEC) store<ELEMENT, VEC>(a.g + i, nothing);
}
