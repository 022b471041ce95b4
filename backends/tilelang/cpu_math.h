// Included before every program for the CPU: matrix products and mathematics that a host
// compiler by itself makes poor code of. Vectors are GCC's and Clang's, so no processor is named
// but for the size of its registers.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

// TileLang's header names it even where its definition is left out.
namespace half_float {
class half;
}

namespace attnfuse {

// The widest vector, and the rows of a block whose sums, two vectors a row, stay in registers:
// there are 32 of them, or 16 without AVX-512 on x86.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 8;
#elif defined(__AVX__)
constexpr int kLanes = 8, kRows = 6;
#elif defined(__x86_64__)
constexpr int kLanes = 4, kRows = 6;
#else
constexpr int kLanes = 4, kRows = 8;
#endif
constexpr int kVectors = 2;
constexpr int kColumns = kVectors * kLanes;
constexpr int kDepth = 128;  // of a packed panel: 16 KiB with AVX-512, half of a first cache

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

// A row-major matrix within a larger one.
struct Matrix {
  float* data;
  int stride;
  Matrix at(int row, int column) const { return {data + row * stride + column, stride}; }
  float& operator()(int row, int column) const { return data[row * stride + column]; }
};

static inline Vector load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

static inline void store(float* to, Vector vector) { std::memcpy(to, &vector, sizeof vector); }

// c += a·b for R rows and V vectors of columns. Sums start from 0, and so are rounded at their own
// size, not at that of all that c holds already. Loops are unrolled because sums in an array that
// is indexed at run time don't stay in registers.
template <int R, int V>
static void block(Matrix a, Matrix b, Matrix c, int depth) {
  Vector sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[r][v] = Vector{};
  for (int k = 0; k < depth; ++k) {
    Vector row[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) row[v] = load(&b(k, v * kLanes));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[r][v] += a(r, k) * row[v];
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v)
      store(&c(r, v * kLanes), load(&c(r, v * kLanes)) + sum[r][v]);
}

// The same for any number of rows, by blocks of R rows, then of R / 2, …
template <int R, int V>
static void blocks(int rows, Matrix a, Matrix b, Matrix c, int depth) {
  int first = 0;
  for (; first + R <= rows; first += R) block<R, V>(a.at(first, 0), b, c.at(first, 0), depth);
  if constexpr (R > 1)
    blocks<R / 2, V>(rows - first, a.at(first, 0), b, c.at(first, 0), depth);
}

// c += a·b for V vectors of columns, of which the first `columns` are there in c.
template <int V>
static void panel(int rows, int columns, Matrix a, Matrix b, Matrix c, int depth) {
  if (columns == V * kLanes) return blocks<kRows, V>(rows, a, b, c, depth);
  for (int first = 0; first < rows; first += kRows) {
    int here = rows - first < kRows ? rows - first : kRows;
    float sums[kRows * V * kLanes] = {};
    Matrix sum{sums, V * kLanes};
    blocks<kRows, V>(here, a.at(first, 0), b, sum, depth);
    for (int r = 0; r < here; ++r)
      for (int j = 0; j < columns; ++j) c(first + r, j) += sum(r, j);
  }
}

// Swaps the off-diagonal D×D blocks of each 2D×2D block that the rows i and i + D are part of.
template <int D, int... Lane>
static inline void exchange(Vector& a, Vector& b, std::integer_sequence<int, Lane...>) {
#if defined(__clang__) || __GNUC__ >= 12
  Vector upper = __builtin_shufflevector(a, b, (Lane & D ? kLanes + Lane - D : Lane)...);
  b = __builtin_shufflevector(a, b, (Lane & D ? kLanes + Lane : Lane + D)...);
  a = upper;
#else
  typedef int32_t Places __attribute__((vector_size(kLanes * sizeof(int32_t))));
  Vector upper = __builtin_shuffle(a, b, Places{(Lane & D ? kLanes + Lane - D : Lane)...});
  b = __builtin_shuffle(a, b, Places{(Lane & D ? kLanes + Lane : Lane + D)...});
  a = upper;
#endif
}

// Transposes a square of kLanes vectors: blocks of half its size, then of a quarter, …
template <int D = kLanes / 2>
static inline void transpose(Vector* square) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if (!(i & D)) exchange<D>(square[i], square[i + D], std::make_integer_sequence<int, kLanes>{});
  if constexpr (D > 1) transpose<D / 2>(square);
}

// to = bᵀ for `columns` rows of b; further columns of `to` are 0.
static void pack_transposed(Matrix b, int columns, int depth, Matrix to) {
  for (int j = 0; j < to.stride; j += kLanes)
    for (int k = 0; k < depth; k += kLanes) {
      if (j + kLanes <= columns && k + kLanes <= depth) {
        Vector square[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) square[i] = load(&b(j + i, k));
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(&to(k + i, j), square[i]);
        continue;
      }
      for (int l = k; l < depth && l < k + kLanes; ++l)
        for (int i = j; i < j + kLanes; ++i) to(l, i) = i < columns ? b(i, l) : 0.0f;
    }
}

// to = `columns` columns of b; further columns of `to` are 0.
static void pack(Matrix b, int columns, int depth, Matrix to) {
  for (int k = 0; k < depth; ++k)
    for (int j = 0; j < to.stride; ++j) to(k, j) = j < columns ? b(k, j) : 0.0f;
}

// One panel of a product. b is packed where its columns lie apart or end within a vector.
template <bool Transposed, int V>
static void columns_of_product(int rows, int columns, Matrix a, Matrix b, Matrix c, int depth) {
  if (!Transposed && columns == V * kLanes) return panel<V>(rows, columns, a, b, c, depth);
  float packed[kDepth * V * kLanes];
  Matrix to{packed, V * kLanes};
  for (int first = 0; first < depth; first += kDepth) {
    int here = depth - first < kDepth ? depth - first : kDepth;
    if constexpr (Transposed)
      pack_transposed(b.at(0, first), columns, here, to);
    else
      pack(b.at(first, 0), columns, here, to);
    panel<V>(rows, columns, a.at(0, first), to, c, here);
  }
}

template <bool Transposed>
static void product(int rows, int columns, Matrix a, Matrix b, Matrix c, int depth) {
  for (int first = 0; first < columns; first += kColumns) {
    int here = columns - first < kColumns ? columns - first : kColumns;
    Matrix own = Transposed ? b.at(first, 0) : b.at(0, first);
    if (here > kLanes)
      columns_of_product<Transposed, kVectors>(rows, here, a, own, c.at(0, first), depth);
    else
      columns_of_product<Transposed, 1>(rows, here, a, own, c.at(0, first), depth);
  }
}

}  // namespace attnfuse

extern "C" {

// c (rows × columns) += a (rows × depth) · b (depth × columns), all row-major without gaps.
static inline int32_t attnfuse_product(
    float* a, float* b, float* c, int32_t rows, int32_t columns, int32_t depth) {
  attnfuse::product<false>(rows, columns, {a, depth}, {b, columns}, {c, columns}, depth);
  return 0;
}

// The same, · bᵀ for b (columns × depth).
static inline int32_t attnfuse_product_transposed(
    float* a, float* b, float* c, int32_t rows, int32_t columns, int32_t depth) {
  attnfuse::product<true>(rows, columns, {a, depth}, {b, depth}, {c, columns}, depth);
  return 0;
}

// 2^x for x below 127.5, within 2 units in the last place; 0 below 2^-126, and for -infinity.
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
