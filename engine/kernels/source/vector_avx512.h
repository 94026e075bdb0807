// Sixteen floats or integers at once, with AVX-512 F, BW, DQ, VL and VNNI.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "layout.h"

namespace sk {
namespace {

constexpr const char* kName = "AVX-512 VNNI";
constexpr int kTile = 8;       // tokens whose sums are kept in registers, quantised weights
constexpr int kFloatTile = 4;  // the same, float weights
constexpr int kQueryTile = 8;  // queries of attention whose sums are kept at once
constexpr int kSums = 16;      // vectors of sums

using Floats = __m512;
using Ints = __m512i;
using Codes = __m512i;  // [16 rows][4 columns]

inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }
inline Floats broadcast(float a) { return _mm512_set1_ps(a); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats absolute(Floats a) { return _mm512_abs_ps(a); }
// a where x < limit, else b
inline Floats where_below(Floats x, Floats limit, Floats a, Floats b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), b, a);
}
inline Floats load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline void store_half(uint16_t* p, Floats a) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline Floats load_bfloat(const uint16_t* p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
inline Floats load_unsigned_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline Floats load_signed_bytes(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline Ints nearest(Floats a) { return _mm512_cvtps_epi32(a); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline int32_t sum(Ints a) { return _mm512_reduce_add_epi32(a); }
inline void store_bytes(int8_t* p, Ints a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a)); }
// 2 to the power of n, n from -127 (which gives 0) to 127
inline Floats power_of_2(Ints n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
template <bool Streamed = false>
inline void prefetch(const void* p) {
    _mm_prefetch((const char*)p, Streamed ? _MM_HINT_T1 : _MM_HINT_T0);
}

// Lane l plus lane l + 8, then 4, 2 and 1.
inline float sum(Floats a) {
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline float largest(Floats a) { return _mm512_reduce_max_ps(a); }

// A group of 32 columns of a panel: w[j] holds columns 4j to 4j + 3.
inline void load_4_bit(const uint8_t* p, Codes* w) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int j = 0; j < 4; j++) {
        const __m512i both = _mm512_loadu_si512(p + 64 * j);
        w[2 * j] = _mm512_and_si512(both, low);
        w[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
}
// dpbusd multiplies unsigned by signed bytes: the codes are raised by 128, and 128 times the activations' total is
// taken off again. All in integers, so nothing is rounded.
inline void load_8_bit(const int8_t* p, Codes* w) {
    for (int j = 0; j < 8; j++) w[j] = _mm512_xor_si512(_mm512_loadu_si512(p + 64 * j), _mm512_set1_epi8(-128));
}
// 6-bit codes as 8-bit ones.
template <bool Raised = true>
inline void load_6_bit(const uint8_t* p, Codes* w) {
    const __m512i pair = _mm512_set1_epi8(48), least = _mm512_set1_epi8(Raised ? 96 : -32);
    load_4_bit(p, w);
    for (int j = 0; j < 8; j += 4) {
        const __m512i high = _mm512_loadu_si512(p + 256 + 16 * j);
        const __m512i moved[4] = {_mm512_slli_epi16(high, 4), _mm512_slli_epi16(high, 2), high,
                                  _mm512_srli_epi16(high, 2)};
        for (int i = 0; i < 4; i++)
            w[j + i] = _mm512_add_epi8(_mm512_or_si512(w[j + i], _mm512_and_si512(moved[i], pair)), least);
    }
}
// The values of 4-bit floats, doubled, as 8-bit codes.
template <bool Raised = true>
inline void load_e2m1(const uint8_t* p, Codes* w) {
    __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)kDoubledE2m1));
    if (Raised) values = _mm512_xor_si512(values, _mm512_set1_epi8(-128));
    load_4_bit(p, w);
    for (int j = 0; j < 8; j++) w[j] = _mm512_shuffle_epi8(values, w[j]);
}
inline int32_t four(const int8_t* a) {
    int32_t bytes;
    __builtin_memcpy(&bytes, a, 4);
    return bytes;
}
inline Ints dot_4_bit(const Codes* w, const int8_t* a) {
    Ints c = _mm512_setzero_si512();
    for (int j = 0; j < 8; j++) c = _mm512_dpbusd_epi32(c, w[j], _mm512_set1_epi32(four(a + 4 * j)));
    return c;
}
// steps of 4 columns; total of the activations over these columns
template <int Steps>
inline Ints dot_8_bit(const Codes* w, const int8_t* a, int32_t total) {
    Ints c = _mm512_set1_epi32(-128 * total);
    for (int j = 0; j < Steps; j++) c = _mm512_dpbusd_epi32(c, w[j], _mm512_set1_epi32(four(a + 4 * j)));
    return c;
}
inline Ints dot_e2m1(const Codes* w, const int8_t* a, int32_t total) { return dot_8_bit<8>(w, a, total); }

}  // namespace
}  // namespace sk
