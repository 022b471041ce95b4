// Included before every program for the CPU: mathematics that the host compiler can vectorise.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

extern "C" {

// 2^x for x up to 127.5, within 2 units in the last place; 0 below 2^-126, and for -infinity.
// Round x to n + f with |f| <= 1/2; 2^f by Cephes' polynomial (Moshier, exp2f.c), 2^n by its bits.
static inline float attnfuse_exp2f(float x) {
  float bounded = x < -126.0f ? -126.0f : x;
  float n = std::floor(bounded + 0.5f);
  float f = bounded - n;
  float p = 1.535336188319500e-4f;
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.0f;
  int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -126.0f ? 0.0f : p * power;
}

}  // extern "C"

// The C library's exp2f is a call for each element, which took a quarter of an attention kernel.
#define exp2f attnfuse_exp2f
