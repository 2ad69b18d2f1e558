// Sums over the ranks of what their devices have copied here.

// own[i] becomes the sum of element i of all ranks, added in the order of the ranks, so that it does not matter whose part it is. The
// others' lie behind each other, `stride` elements apart, the own ones left out.
extern "C" __global__ void sum_parts(ELEMENT* own, const ELEMENT* parts, i64 n, i64 stride, u32 rank, u32 ranks) {
  i64 packs = n / VEC;
  for (i64 p = thread_of_grid(); p < packs; p += threads_of_grid()) {
    i64 at = p * VEC;
    Pack<ELEMENT, VEC> mine = load<ELEMENT, VEC>(own + at);
    float sum[VEC];
    for (u32 r = 0; r < ranks; ++r) {
      Pack<ELEMENT, VEC> x = mine;
      if (r != rank) x = load<ELEMENT, VEC>(parts + (r < rank ? r : r - 1) * stride + at);
#pragma unroll
      for (int j = 0; j < VEC; ++j) sum[j] = r == 0 ? wide(x.at[j]) : sum[j] + wide(x.at[j]);
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j) mine.at[j] = narrow<ELEMENT>(sum[j]);
    store<ELEMENT, VEC>(own + at, mine);
  }
}
