// Sixteen floats or integers at once, as pairs of 256-bit vectors, with AVX2, FMA and F16C.
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "layout.h"

namespace sk {
namespace {

constexpr const char* kName = "AVX2";
constexpr int kTile = 4;       // tokens whose sums are kept at once, quantised weights
constexpr int kFloatTile = 2;  // the same, float weights
constexpr int kQueryTile = 4;  // queries of attention whose sums are kept at once
constexpr int kSums = 4;       // vectors of sums

struct Floats {
    __m256 low, high;
};
struct Ints {
    __m256i low, high;
};
struct Codes {
    __m256i low, high;  // [rows 0 to 7][4 columns], [rows 8 to 15][4 columns]
};

inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats a) {
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}
inline Floats broadcast(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats subtract(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats multiply(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats divide(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats fused(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats larger(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats smaller(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats absolute(Floats a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
// a where x < limit, else b
inline Floats where_below(Floats x, Floats limit, Floats a, Floats b) {
    return {_mm256_blendv_ps(b.low, a.low, _mm256_cmp_ps(x.low, limit.low, _CMP_LT_OQ)),
            _mm256_blendv_ps(b.high, a.high, _mm256_cmp_ps(x.high, limit.high, _CMP_LT_OQ))};
}
inline Floats load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + 1))};
}
inline void store_half(uint16_t* p, Floats a) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i*)p + 1, _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
}
inline Floats load_bfloat(const uint16_t* p) {
    const auto part = [](const uint16_t* from) {
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)), 16));
    };
    return {part(p), part(p + 8)};
}
inline Floats load_unsigned_bytes(const uint8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p))),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
}
inline Floats load_signed_bytes(const int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
}
inline Ints nearest(Floats a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline int32_t sum(Ints a) {
    const __m256i eight = _mm256_add_epi32(a.low, a.high);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}
inline void store_bytes(int8_t* p, Ints a) {
    // Packing works within 128-bit halves; the permutation puts the fours back in order.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xD8);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
// 2 to the power of n, n from -127 (which gives 0) to 127
inline Floats power_of_2(Ints n) {
    const auto part = [](__m256i m) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(m, _mm256_set1_epi32(127)), 23));
    };
    return {part(n.low), part(n.high)};
}
template <bool Streamed = false>
inline void prefetch(const void* p) {
    _mm_prefetch((const char*)p, Streamed ? _MM_HINT_T1 : _MM_HINT_T0);
}

// Lane l plus lane l + 8, then 4, 2 and 1.
inline float sum(Floats a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float largest(Floats a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// A group of 32 columns of a panel: w[j] holds columns 4j to 4j + 3.
inline void load_4_bit(const uint8_t* p, Codes* w) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int j = 0; j < 4; j++) {
        const __m256i low = _mm256_loadu_si256((const __m256i*)(p + 64 * j));
        const __m256i high = _mm256_loadu_si256((const __m256i*)(p + 64 * j + 32));
        w[2 * j] = {_mm256_and_si256(low, mask), _mm256_and_si256(high, mask)};
        w[2 * j + 1] = {_mm256_and_si256(_mm256_srli_epi16(low, 4), mask),
                        _mm256_and_si256(_mm256_srli_epi16(high, 4), mask)};
    }
}
// 6-bit codes as 8-bit ones.
inline void load_6_bit(const uint8_t* p, Codes* w) {
    const __m256i pair = _mm256_set1_epi8(48), least = _mm256_set1_epi8(-32);
    load_4_bit(p, w);
    const auto raise = [&](__m256i low, __m256i high) {
        return _mm256_add_epi8(_mm256_or_si256(low, _mm256_and_si256(high, pair)), least);
    };
    const auto raise_all = [&](__m256i Codes::* part, int j, const uint8_t* at) {
        const __m256i high = _mm256_loadu_si256((const __m256i*)at);
        w[j].*part = raise(w[j].*part, _mm256_slli_epi16(high, 4));
        w[j + 1].*part = raise(w[j + 1].*part, _mm256_slli_epi16(high, 2));
        w[j + 2].*part = raise(w[j + 2].*part, high);
        w[j + 3].*part = raise(w[j + 3].*part, _mm256_srli_epi16(high, 2));
    };
    for (int j = 0; j < 8; j += 4) {
        raise_all(&Codes::low, j, p + 256 + 16 * j);
        raise_all(&Codes::high, j, p + 256 + 16 * j + 32);
    }
}
// The values of 4-bit floats, doubled, and raised by their largest to be unsigned.
inline void load_e2m1(const uint8_t* p, Codes* w) {
    const __m128i table = _mm_loadu_si128((const __m128i*)kDoubledE2m1);
    const __m256i values = _mm256_broadcastsi128_si256(_mm_add_epi8(table, _mm_set1_epi8(kLargestE2m1)));
    load_4_bit(p, w);
    for (int j = 0; j < 8; j++) w[j] = {_mm256_shuffle_epi8(values, w[j].low), _mm256_shuffle_epi8(values, w[j].high)};
}
inline void load_8_bit(const int8_t* p, Codes* w) {
    for (int j = 0; j < 8; j++)
        w[j] = {_mm256_loadu_si256((const __m256i*)(p + 64 * j)), _mm256_loadu_si256((const __m256i*)(p + 64 * j + 32))};
}
inline __m256i four(const int8_t* a) {
    int32_t bytes;
    __builtin_memcpy(&bytes, a, 4);
    return _mm256_set1_epi32(bytes);
}
// Of unsigned codes up to 15 in eight steps, or 24 in four: sums of two products a step stay within 16 bits.
template <int Steps>
inline Ints dot_unsigned(const Codes* w, const int8_t* a) {
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int j = 0; j < Steps; j++) {
        const __m256i x = four(a + 4 * j);
        low = _mm256_add_epi16(low, _mm256_maddubs_epi16(w[j].low, x));
        high = _mm256_add_epi16(high, _mm256_maddubs_epi16(w[j].high, x));
    }
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones)};
}
inline Ints dot_4_bit(const Codes* w, const int8_t* a) { return dot_unsigned<8>(w, a); }
inline Ints dot_e2m1(const Codes* w, const int8_t* a, int32_t total) {
    const __m256i raised = _mm256_set1_epi32(-kLargestE2m1 * total);
    return add({raised, raised}, add(dot_unsigned<4>(w, a), dot_unsigned<4>(w + 4, a + 16)));
}
// steps of 4 columns; maddubs multiplies unsigned by signed bytes, so the codes give their signs to the activations:
// two products of at most 128 · 127 stay within 16 bits.
template <int Steps>
inline Ints dot_8_bit(const Codes* w, const int8_t* a, int32_t) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int j = 0; j < Steps; j++) {
        const __m256i x = four(a + 4 * j);
        const auto products = [&](__m256i codes) {
            return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)), ones);
        };
        low = _mm256_add_epi32(low, products(w[j].low));
        high = _mm256_add_epi32(high, products(w[j].high));
    }
    return {low, high};
}

}  // namespace
}  // namespace sk
