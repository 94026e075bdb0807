// Weights as 8-bit or 4-bit codes in groups of 32, for models that come unquantised.
#pragma once
#include <stdint.h>

#include "api.h"

namespace sk {

// Of BF16, F16 or F32 values, all finite. A scale is the largest absolute value / 127; codes are -127 to 127, the
// nearest for the scale as float16 has it.
void quantize_8_bit(int32_t format, const void* values, int64_t groups, int8_t* codes, uint16_t* scale);

// The group's minimum, and as its scale (maximum - minimum) / 15; codes are 0 to 15.
void quantize_4_bit(int32_t format, const void* values, int64_t groups, uint8_t* codes, uint16_t* scale,
                    uint16_t* minimum);

}  // namespace sk
