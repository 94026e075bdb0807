// Sixteen floats or integers at once, as four 128-bit vectors, with NEON and dot products (ARMv8.2).
#pragma once
#include <arm_neon.h>
#include <stdint.h>

#include "layout.h"

namespace sk {
namespace {

constexpr const char* kName = "NEON dot products";
constexpr int kTile = 2;       // tokens whose sums are kept at once, quantised weights
constexpr int kFloatTile = 1;  // the same, float weights
constexpr int kQueryTile = 4;  // queries of attention whose sums are kept at once
constexpr int kSums = 4;       // vectors of sums

struct Floats {
    float32x4_t part[4];
};
struct Ints {
    int32x4_t part[4];
};
struct Codes {
    int8x16_t part[4];  // [4 rows][4 columns] each
};

template <typename Result, typename Operation>
inline Result each_part(Operation operation) {
    return {{operation(0), operation(1), operation(2), operation(3)}};
}

inline Floats load(const float* p) {
    return each_part<Floats>([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, Floats a) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.part[i]);
}
inline Floats broadcast(float a) {
    return each_part<Floats>([&](int) { return vdupq_n_f32(a); });
}
inline Floats add(Floats a, Floats b) {
    return each_part<Floats>([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
}
inline Floats subtract(Floats a, Floats b) {
    return each_part<Floats>([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
}
inline Floats multiply(Floats a, Floats b) {
    return each_part<Floats>([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
}
inline Floats divide(Floats a, Floats b) {
    return each_part<Floats>([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
}
inline Floats fused(Floats a, Floats b, Floats c) {
    return each_part<Floats>([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
}
// a where x < limit, else b
inline Floats where_below(Floats x, Floats limit, Floats a, Floats b) {
    return each_part<Floats>(
        [&](int i) { return vbslq_f32(vcltq_f32(x.part[i], limit.part[i]), a.part[i], b.part[i]); });
}
inline Floats larger(Floats a, Floats b) { return where_below(b, a, a, b); }
inline Floats smaller(Floats a, Floats b) { return where_below(a, b, a, b); }
inline Floats absolute(Floats a) {
    return each_part<Floats>([&](int i) { return vabsq_f32(a.part[i]); });
}
inline Floats load_half(const uint16_t* p) {
    return each_part<Floats>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline void store_half(uint16_t* p, Floats a) {
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.part[i])));
}
inline Floats load_bfloat(const uint16_t* p) {
    return each_part<Floats>([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
inline Floats load_unsigned_bytes(const uint8_t* p) {
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
             vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))}};
}
inline Floats load_signed_bytes(const int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
inline Ints nearest(Floats a) {
    return each_part<Ints>([&](int i) { return vcvtnq_s32_f32(a.part[i]); });
}
inline Floats to_floats(Ints a) {
    return each_part<Floats>([&](int i) { return vcvtq_f32_s32(a.part[i]); });
}
inline Ints add(Ints a, Ints b) {
    return each_part<Ints>([&](int i) { return vaddq_s32(a.part[i], b.part[i]); });
}
inline int32_t sum(Ints a) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.part[0], a.part[1]), vaddq_s32(a.part[2], a.part[3])));
}
inline void store_bytes(int8_t* p, Ints a) {
    const int16x8_t low = vcombine_s16(vmovn_s32(a.part[0]), vmovn_s32(a.part[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(a.part[2]), vmovn_s32(a.part[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
// 2 to the power of n, n from -127 (which gives 0) to 127
inline Floats power_of_2(Ints n) {
    return each_part<Floats>([&](int i) {
        return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.part[i], vdupq_n_s32(127)), 23));
    });
}
template <bool Streamed = false>
inline void prefetch(const void* p) {
    __builtin_prefetch(p, 0, Streamed ? 2 : 3);
}

// Lane l plus lane l + 8, then 4, 2 and 1.
inline float sum(Floats a) {
    const float32x4_t four = vaddq_f32(vaddq_f32(a.part[0], a.part[2]), vaddq_f32(a.part[1], a.part[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float largest(Floats a) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.part[0], a.part[1]), vmaxq_f32(a.part[2], a.part[3])));
}

// A group of 32 columns of a panel: w[j] holds columns 4j to 4j + 3.
inline void load_4_bit(const uint8_t* p, Codes* w) {
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4; i++) {
            const uint8x16_t both = vld1q_u8(p + 64 * j + 16 * i);
            w[2 * j].part[i] = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
            w[2 * j + 1].part[i] = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
        }
}
// 6-bit codes as 8-bit ones.
inline void load_6_bit(const uint8_t* p, Codes* w) {
    const uint8x16_t pair = vdupq_n_u8(48);
    load_4_bit(p, w);
    const auto raise = [&](int8x16_t& low, uint8x16_t high) {
        const uint8x16_t code = vorrq_u8(vreinterpretq_u8_s8(low), vandq_u8(high, pair));
        low = vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(32));
    };
    for (int j = 0; j < 8; j += 4)
        for (int i = 0; i < 4; i++) {
            const uint8x16_t high = vld1q_u8(p + 256 + 16 * j + 16 * i);
            raise(w[j].part[i], vshlq_n_u8(high, 4));
            raise(w[j + 1].part[i], vshlq_n_u8(high, 2));
            raise(w[j + 2].part[i], high);
            raise(w[j + 3].part[i], vshrq_n_u8(high, 2));
        }
}
// The values of 4-bit floats, doubled, as 8-bit codes.
inline void load_e2m1(const uint8_t* p, Codes* w) {
    const int8x16_t values = vld1q_s8(kDoubledE2m1);
    load_4_bit(p, w);
    for (int j = 0; j < 8; j++)
        for (int8x16_t& part : w[j].part) part = vqtbl1q_s8(values, vreinterpretq_u8_s8(part));
}
inline void load_8_bit(const int8_t* p, Codes* w) {
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 4; i++) w[j].part[i] = vld1q_s8(p + 64 * j + 16 * i);
}
template <int Steps>
inline Ints dot_8_bit(const Codes* w, const int8_t* a, int32_t) {
    Ints c = each_part<Ints>([](int) { return vdupq_n_s32(0); });
    for (int j = 0; j < Steps; j++) {
        int32_t bytes;
        __builtin_memcpy(&bytes, a + 4 * j, 4);
        const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(bytes));
        for (int i = 0; i < 4; i++) c.part[i] = vdotq_s32(c.part[i], w[j].part[i], x);
    }
    return c;
}
inline Ints dot_4_bit(const Codes* w, const int8_t* a) { return dot_8_bit<8>(w, a, 0); }
inline Ints dot_e2m1(const Codes* w, const int8_t* a, int32_t total) { return dot_8_bit<8>(w, a, total); }

}  // namespace
}  // namespace sk
