// float16 and bfloat16 to and from float32, rounding to the nearest, ties to even: as the processors' instructions do.
#pragma once
#include <stdint.h>
#include <string.h>

namespace sk {

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline float from_bfloat(uint16_t value) { return float_of(uint32_t(value) << 16); }

static inline float from_half(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 31, fraction = half & 1023;
    if (exponent == 31) return float_of(sign | 0x7f800000u | (fraction ? 0x400000u : 0u) | fraction << 13);
    if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    const float small = float(fraction) * 0x1p-24f;  // exact
    return float_of(sign | bits_of(small));
}

static inline uint16_t to_half(float value) {
    const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000;
    const uint32_t size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return uint16_t(sign | 0x7e00 | ((size >> 13) & 0x3ff));
    if (size >= 0x47800000u) return uint16_t(sign | 0x7c00);
    if (size < 0x38800000u) {  // below float16's normal numbers: 0.5 has the same last place, 2^-24
        const float shifted = float_of(size) + 0.5f;
        return uint16_t(sign | (bits_of(shifted) - 0x3f000000u));
    }
    const uint32_t rounded = size + 0xfff + ((size >> 13) & 1);
    return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace sk
