// Online softmax on the accumulators of Hopper's matrix unit. A thread of a warpgroup owns rows r and
// r + 8 of the 16 rows of its warp; element e of its accumulators belongs to row (e >> 1) & 1. Four
// neighbouring threads share a row. Exponentials have base 2; `scale` turns scores into exponents, and
// `row_max` is the greatest score, not scaled.
namespace attnfuse {
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
// What scores are taken relative to: any number will do for a row that has seen nothing.
__device__ __forceinline__ float origin(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }

// Up to here `origin * scale` is so exact that the greatest weight of a row is 1, or rounds to 1.
constexpr float LARGE = 4096.0f;

// Scores become weights. Each thread compares its own scores with the maximum so far; only where one
// is greater do a warp's threads exchange theirs, and sums and outputs are rescaled. (A maximum that may
// lag behind would be quicker, but then a row's greatest weight is no power of 2, and is rounded.)
// `row_sum` is this thread's part of the sums.
template <int N>
__device__ __forceinline__ void softmax(float* score, float* row_max, float* row_sum, float* rescale,
                                        int* grown, float scale) {
  float a0 = score[0], a1 = score[1], b0 = score[2], b1 = score[3];
#pragma unroll
  for (int e = 4; e < N; e += 4) {
    a0 = fmaxf(a0, score[e]);
    a1 = fmaxf(a1, score[e + 1]);
    b0 = fmaxf(b0, score[e + 2]);
    b1 = fmaxf(b1, score[e + 3]);
  }
  float top[2] = {fmaxf(a0, a1), fmaxf(b0, b1)};
  grown[0] = __any_sync(0xffffffffu, (top[0] > row_max[0]) | (top[1] > row_max[1]));
  if (grown[0]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float before = row_max[r];
      row_max[r] = fmaxf(before, quad_max(top[r]));
      rescale[r] = exp2((before - origin(row_max[r])) * scale);
      row_sum[r] *= rescale[r];
    }
  }
  float base0 = origin(row_max[0]) * scale, base1 = origin(row_max[1]) * scale;
  if (fmaxf(fabsf(base0), fabsf(base1)) > LARGE) {
    float origin0 = origin(row_max[0]), origin1 = origin(row_max[1]);
#pragma unroll
    for (int e = 0; e < N; ++e) score[e] -= (e >> 1) & 1 ? origin1 : origin0;
    base0 = base1 = 0.0f;
  }
  a0 = a1 = b0 = b1 = 0.0f;
#pragma unroll
  for (int e = 0; e < N; e += 4) {
    score[e] = exp2(fmaf(score[e], scale, -base0));
    score[e + 1] = exp2(fmaf(score[e + 1], scale, -base0));
    score[e + 2] = exp2(fmaf(score[e + 2], scale, -base1));
    score[e + 3] = exp2(fmaf(score[e + 3], scale, -base1));
    a0 += score[e];
    a1 += score[e + 1];
    b0 += score[e + 2];
    b1 += score[e + 3];
  }
  row_sum[0] += a0 + a1;
  row_sum[1] += b0 + b1;
}

template <int N>
__device__ __forceinline__ void rescale(float* out_sum, const float* rescale, const int* grown) {
  if (grown[0]) {
#pragma unroll
    for (int e = 0; e < N; ++e) out_sum[e] *= rescale[(e >> 1) & 1];
  }
}

// Sums become the attention, 0 in rows that have seen nothing; `row_max` becomes the log-sum-exp, in
// which a score counts `factor` times.
template <int N>
__device__ __forceinline__ void finish(float* out_sum, float* row_max, float* row_sum, float factor) {
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = quad_sum(row_sum[r]);
    inverse[r] = sum > 0.0f ? 1.0f / sum : 0.0f;
    row_max[r] = sum > 0.0f ? fmaf(row_max[r], factor, logf(sum)) : -INFINITY;
  }
#pragma unroll
  for (int e = 0; e < N; ++e) out_sum[e] *= inverse[(e >> 1) & 1];
}
}  // namespace attnfuse
