#include "quantizing.h"

#include <algorithm>
#include <cmath>

#include "half.h"
#include "layout.h"

namespace sk {

namespace {

// To the nearest, ties to even, of |x| < 2^22: beyond 1.5 · 2^23 floats are whole numbers.
inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

inline float inverse(uint16_t scale) {
    const float plain = from_half(scale);
    return plain == 0.0f ? 0.0f : 1.0f / plain;
}

void widen(int32_t format, const void* values, int64_t first, float* out) {
    for (int64_t i = 0; i < kGroup; i++)
        out[i] = format == SK_BF16  ? from_bfloat(((const uint16_t*)values)[first + i])
                 : format == SK_F16 ? from_half(((const uint16_t*)values)[first + i])
                                    : ((const float*)values)[first + i];
}

}  // namespace

void quantize_8_bit(int32_t format, const void* values, int64_t groups, int8_t* codes, uint16_t* scale) {
    for (int64_t g = 0; g < groups; g++) {
        float group[kGroup], most = 0.0f;
        widen(format, values, g * kGroup, group);
        for (float value : group) most = std::max(most, std::fabs(value));
        scale[g] = to_half(most / 127.0f);
        const float factor = inverse(scale[g]);
        for (int64_t i = 0; i < kGroup; i++)
            codes[g * kGroup + i] = int8_t(nearest(std::min(std::max(group[i] * factor, -127.0f), 127.0f)));
    }
}

void quantize_4_bit(int32_t format, const void* values, int64_t groups, uint8_t* codes, uint16_t* scale,
                    uint16_t* minimum) {
    for (int64_t g = 0; g < groups; g++) {
        float group[kGroup];
        widen(format, values, g * kGroup, group);
        minimum[g] = to_half(*std::min_element(group, group + kGroup));
        const float least = from_half(minimum[g]);
        for (float& value : group) value -= least;
        scale[g] = to_half(*std::max_element(group, group + kGroup) / 15.0f);
        const float factor = inverse(scale[g]);
        for (int64_t i = 0; i < kGroup; i++)
            codes[g * kGroup + i] = uint8_t(nearest(std::min(std::max(group[i] * factor, 0.0f), 15.0f)));
    }
}

}  // namespace sk
