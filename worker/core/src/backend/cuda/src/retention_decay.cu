// λ = 1 − 2^(−β) with β kept between two bounds, and its reverse: where β is out of them no gradient flows. What is no number stays so.

__device__ __forceinline__ float forgotten(float beta, float lo, float hi) { return exp2f(-(beta != beta ? beta : fminf(fmaxf(beta, lo), hi))); }

extern "C" __global__ void retention_decay(const ELEMENT* beta, ELEMENT* lambda, i64 n, float lo, float hi) {
  for (i64 at = thread_of_grid(); at < n; at += threads_of_grid()) lambda[at] = narrow<ELEMENT>(1.0f - forgotten(wide(beta[at]), lo, hi));
}

extern "C" __global__ void retention_decay_back(const ELEMENT* g, const ELEMENT* beta, ELEMENT* to, i64 n, float lo, float hi) {
  const float ln_2 = 0.6931471805599453f;
  for (i64 at = thread_of_grid(); at < n; at += threads_of_grid()) {
    float b = wide(beta[at]);
    to[at] = narrow<ELEMENT>(b >= lo && b <= hi ? wide(g[at]) * ln_2 * forgotten(b, lo, hi) : 0.0f);
  }
}
