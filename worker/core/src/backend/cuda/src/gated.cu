// silu(a) · b and its reverse: the two halves of one tensor's rows (SwiGLU), or two tensors.
//
// `width` is a row of the result; `stride` is the distance between rows of a and of b, `narrow_stride` between those of y or g, and
// `wide_stride` between those of da and of db. VEC elements per load.

struct Gradient {
  float a, b;
};

__device__ __forceinline__ float gated(float a, float b) { return a * sigmoid(a) * b; }

__device__ __forceinline__ Gradient gated_back(float a, float b, float g) {
  float s = sigmoid(a);
  Gradient out = {g * b * s * (1.0f + a * (1.0f - s)), g * a * s};
  return out;
}

extern "C" __global__ void gate(const ELEMENT* a, const ELEMENT* b, ELEMENT* y, i64 rows, i64 width, i64 stride, i64 narrow_stride) {
  i64 packs = rows * (width / VEC);
  for (i64 t = thread_of_grid(); t < packs; t += threads_of_grid()) {
    i64 row = t / (width / VEC), column = t % (width / VEC) * VEC;
    i64 at = row * stride + column;
    Pack<ELEMENT, VEC> pa = load<ELEMENT, VEC>(a + at), pb = load<ELEMENT, VEC>(b + at), out;
#pragma unroll
    for (int j = 0; j < VEC; ++j) out.at[j] = narrow<ELEMENT>(gated(wide(pa.at[j]), wide(pb.at[j])));
    store<ELEMENT, VEC>(y + row * narrow_stride + column, out);
  }
}

extern "C" __global__ void gate_back(const ELEMENT* g, const ELEMENT* a, const ELEMENT* b, ELEMENT* da, ELEMENT* db, i64 rows, i64 width, i64 stride, i64 narrow_stride, i64 wide_stride) {
  i64 packs = rows * (width / VEC);
  for (i64 t = thread_of_grid(); t < packs; t += threads_of_grid()) {
    i64 row = t / (width / VEC), column = t % (width / VEC) * VEC;
    i64 at = row * stride + column;
    Pack<ELEMENT, VEC> pa = load<ELEMENT, VEC>(a + at), pb = load<ELEMENT, VEC>(b + at);
    Pack<ELEMENT, VEC> pg = load<ELEMENT, VEC>(g + row * narrow_stride + column), oa, ob;
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      Gradient d = gated_back(wide(pa.at[j]), wide(pb.at[j]), wide(pg.at[j]));
      oa.at[j] = narrow<ELEMENT>(d.a);
      ob.at[j] = narrow<ELEMENT>(d.b);
    }
    store<ELEMENT, VEC>(da + row * wide_stride + column, oa);
    store<ELEMENT, VEC>(db + row * wide_stride + column, ob);
  }
}
