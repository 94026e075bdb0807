// Sixteen floats or integers one after the other: the reference for the other variants, and what runs everywhere.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "half.h"
#include "layout.h"

namespace sk {
namespace {

constexpr const char* kName = "scalar";
constexpr int kTile = 4;
constexpr int kFloatTile = 4;
constexpr int kQueryTile = 4;  // queries of attention whose sums are kept at once
constexpr int kSums = 4;       // vectors of sums

struct Floats {
    float lane[16];
};
struct Ints {
    int32_t lane[16];
};
struct Codes {
    int8_t byte[64];  // [16 rows][4 columns]
};

#define SK_EACH for (int l = 0; l < 16; l++)

inline Floats load(const float* p) {
    Floats a;
    memcpy(a.lane, p, sizeof a.lane);
    return a;
}
inline void store(float* p, Floats a) { memcpy(p, a.lane, sizeof a.lane); }
inline Floats broadcast(float value) {
    Floats a;
    SK_EACH a.lane[l] = value;
    return a;
}
inline Floats add(Floats a, Floats b) {
    SK_EACH a.lane[l] = a.lane[l] + b.lane[l];
    return a;
}
inline Floats subtract(Floats a, Floats b) {
    SK_EACH a.lane[l] = a.lane[l] - b.lane[l];
    return a;
}
inline Floats multiply(Floats a, Floats b) {
    SK_EACH a.lane[l] = a.lane[l] * b.lane[l];
    return a;
}
inline Floats divide(Floats a, Floats b) {
    SK_EACH a.lane[l] = a.lane[l] / b.lane[l];
    return a;
}
inline Floats fused(Floats a, Floats b, Floats c) {
    SK_EACH a.lane[l] = fmaf(a.lane[l], b.lane[l], c.lane[l]);
    return a;
}
inline Floats larger(Floats a, Floats b) {
    SK_EACH a.lane[l] = a.lane[l] > b.lane[l] ? a.lane[l] : b.lane[l];
    return a;
}
inline Floats smaller(Floats a, Floats b) {
    SK_EACH a.lane[l] = a.lane[l] < b.lane[l] ? a.lane[l] : b.lane[l];
    return a;
}
inline Floats absolute(Floats a) {
    SK_EACH a.lane[l] = fabsf(a.lane[l]);
    return a;
}
inline Floats where_below(Floats x, Floats limit, Floats a, Floats b) {
    SK_EACH a.lane[l] = x.lane[l] < limit.lane[l] ? a.lane[l] : b.lane[l];
    return a;
}
inline Floats load_half(const uint16_t* p) {
    Floats a;
    SK_EACH a.lane[l] = from_half(p[l]);
    return a;
}
inline void store_half(uint16_t* p, Floats a) { SK_EACH p[l] = to_half(a.lane[l]); }
inline Floats load_bfloat(const uint16_t* p) {
    Floats a;
    SK_EACH a.lane[l] = from_bfloat(p[l]);
    return a;
}
inline Floats load_unsigned_bytes(const uint8_t* p) {
    Floats a;
    SK_EACH a.lane[l] = float(p[l]);
    return a;
}
inline Floats load_signed_bytes(const int8_t* p) {
    Floats a;
    SK_EACH a.lane[l] = float(p[l]);
    return a;
}
inline Ints nearest(Floats a) {
    Ints b;
    SK_EACH b.lane[l] = int32_t(rintf(a.lane[l]));
    return b;
}
inline Floats to_floats(Ints a) {
    Floats b;
    SK_EACH b.lane[l] = float(a.lane[l]);
    return b;
}
inline Ints add(Ints a, Ints b) {
    SK_EACH a.lane[l] += b.lane[l];
    return a;
}
inline int32_t sum(Ints a) {
    int32_t total = 0;
    SK_EACH total += a.lane[l];
    return total;
}
inline void store_bytes(int8_t* p, Ints a) { SK_EACH p[l] = int8_t(a.lane[l]); }
inline Floats power_of_2(Ints n) {
    Floats a;
    SK_EACH a.lane[l] = float_of(uint32_t(n.lane[l] + 127) << 23);
    return a;
}
template <bool Streamed = false>
inline void prefetch(const void*) {}

inline float sum(Floats a) {
    for (int width = 8; width; width /= 2)
        for (int l = 0; l < width; l++) a.lane[l] = a.lane[l] + a.lane[l + width];
    return a.lane[0];
}
inline float largest(Floats a) {
    float most = a.lane[0];
    SK_EACH most = a.lane[l] > most ? a.lane[l] : most;
    return most;
}

inline void load_4_bit(const uint8_t* p, Codes* w) {
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 64; i++) {
            w[2 * j].byte[i] = int8_t(p[64 * j + i] & 15);
            w[2 * j + 1].byte[i] = int8_t(p[64 * j + i] >> 4);
        }
}
// 6-bit codes as 8-bit ones.
inline void load_6_bit(const uint8_t* p, Codes* w) {
    load_4_bit(p, w);
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 64; i++)
            w[j].byte[i] = int8_t((w[j].byte[i] | (p[256 + j / 4 * 64 + i] >> j % 4 * 2 & 3) << 4) - 32);
}
// The values of 4-bit floats, doubled, as 8-bit codes.
inline void load_e2m1(const uint8_t* p, Codes* w) {
    load_4_bit(p, w);
    for (int j = 0; j < 8; j++)
        for (int8_t& code : w[j].byte) code = kDoubledE2m1[code];
}
inline void load_8_bit(const int8_t* p, Codes* w) { memcpy(w, p, 512); }
template <int Steps>
inline Ints dot_8_bit(const Codes* w, const int8_t* a, int32_t) {
    Ints c;
    SK_EACH {
        int32_t dot = 0;
        for (int j = 0; j < Steps; j++)
            for (int i = 0; i < 4; i++) dot += int32_t(w[j].byte[4 * l + i]) * a[4 * j + i];
        c.lane[l] = dot;
    }
    return c;
}
inline Ints dot_4_bit(const Codes* w, const int8_t* a) { return dot_8_bit<8>(w, a, 0); }
inline Ints dot_e2m1(const Codes* w, const int8_t* a, int32_t total) { return dot_8_bit<8>(w, a, total); }

#undef SK_EACH

}  // namespace
}  // namespace sk
