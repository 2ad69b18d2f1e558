// Sums over the ranks of what their devices have copied here.

// own[i] becomes the sum of element i of all ranks, added in the order of the ranks, so that it does not matter whose part it is. The
// others' lie behind each other, `stride` elements apart, the own ones left out.
__device__ __forceinline__ const ELEMENT* of_rank(const ELEMENT* own, const ELEMENT* parts, i64 stride, u32 rank, u32 r) {
  return r == rank ? own : parts + (i64)(r < rank ? r : r - 1) * stride;
}

extern "C" __global__ void sum_parts(ELEMENT* own, const ELEMENT* parts, i64 n, i64 stride, u32 rank, u32 ranks) {
  i64 packs = n / VEC;
  for (i64 p = thread_of_grid(); p < packs; p += threads_of_grid()) {
    float sum[VEC];
    Pack<ELEMENT, VEC> x;
    for (u32 r = 0; r < ranks; ++r) {
      x = load<ELEMENT, VEC>(of_rank(own, parts, stride, rank, r) + p * VEC);
#pragma unroll
      for (int j = 0; j < VEC; ++j) sum[j] = r == 0 ? wide(x.at[j]) : sum[j] + wide(x.at[j]);
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j) x.at[j] = narrow<ELEMENT>(sum[j]);
    store<ELEMENT, VEC>(own + p * VEC, x);
  }
  // What is left of the last pack.
  i64 at = packs * VEC + thread_of_grid();
  if (at < n) {
    float sum = wide(*(of_rank(own, parts, stride, rank, 0) + at));
    for (u32 r = 1; r < ranks; ++r) sum += wide(*(of_rank(own, parts, stride, rank, r) + at));
    own[at] = narrow<ELEMENT>(sum);
  }
}
