// The packed layout of a matrix W [rows N, columns K]: one for all processors, little endian, so that a file of it can
// be mapped into memory. It starts at a multiple of 64 bytes.
//
// Panels of 16 rows follow each other (rows 16p to 16p + 15 are panel p; rows beyond N are zeros). A panel is a line of
// blocks, in the order of the columns, so that it is read from its first to its last byte. With n the row within the
// panel, and half = float16:
//
//   Q4            32 columns,  320 bytes: codes4, scale half[n], minimum half[n]
//   Q4_SUPER     256 columns, 2368 bytes: d half[n], dmin half[n], scale u8[8][n], minimum u8[8][n], 8 x codes4
//   Q8            64 columns, 1088 bytes: 2 x codes8, 2 x scale half[n]; the last block may be half empty
//   Q8_MINIMUM    32 columns,  576 bytes: codes8, scale half[n], minimum half[n]
//   Q8_SUPER     256 columns, 4416 bytes: d half[n], dmin half[n], scale u8[8][n], minimum u8[8][n], 8 x codes8
//   Q6_SUPER16   256 columns, 3392 bytes: d half[n], scale i8[16][n], 32 zeros, 8 x codes6
//   MXFP4        128 columns, 1088 bytes: scale u8[4][n], 4 x codes4; the last block may be shorter
//   BF16, F16      1 column,    32 bytes: values [n]
//   F32            1 column,    64 bytes: values [n]
//
// where, for a group of 32 columns,
//   codes4 is [j 0..3][n 0..15][i 0..3], 256 bytes: low half the code of column 8j + i, high half that of 8j + 4 + i
//   codes6 is codes4 of the low bits, then [j 0..1][n 0..15][i 0..3], 128 bytes: bits 2m and 2m + 1 are the high ones of
//          column 16j + 4m + i; the code is what they make less 32
//   codes8 is [j 0..7][n 0..15][i 0..3], 512 bytes: the code of column 4j + i
// Panels are padded with zeros to a multiple of 64 bytes.
#pragma once
#include <stdint.h>

#include <array>

#include "api.h"

namespace sk {

// Static, so that no copy compiled for one instruction set is linked into the code of another.
constexpr int64_t kPanel = 16;
constexpr int64_t kGroup = 32;
constexpr int64_t kSuper = 256;

static constexpr int64_t padded(int64_t bytes) { return (bytes + 63) & ~int64_t(63); }
static constexpr int64_t panels(int64_t rows) { return (rows + kPanel - 1) / kPanel; }
static constexpr bool is_known(int32_t format) { return format >= SK_Q4 && format <= SK_F32; }
static constexpr bool is_quantized(int32_t format) { return format < SK_BF16; }
static constexpr bool wants_codes(const sk_matrix& matrix) {
    return matrix.rows > 0 && is_quantized(matrix.format);
}
static constexpr bool is_4_bit(int32_t format) { return format == SK_Q4 || format == SK_Q4_SUPER || format == SK_MXFP4; }

// Twice the values of 4-bit floats with two bits of exponent and one of mantissa (OCP Microscaling Formats 1.0).
static constexpr int8_t kDoubledE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int8_t kLargestE2m1 = 12;

static constexpr bool has_minimum(int32_t format) {
    return format == SK_Q4 || format == SK_Q4_SUPER || format == SK_Q8_MINIMUM || format == SK_Q8_SUPER;
}

// Bytes of the scale of a row and group or block.
static constexpr int64_t scale_bytes(int32_t format) { return format == SK_MXFP4 ? 1 : 2; }

// Columns that scales are stored for at once: K must be a multiple of it.
static constexpr int64_t columns_per_scale_block(int32_t format) {
    return !is_quantized(format)                                                           ? 1
           : format == SK_Q4_SUPER || format == SK_Q8_SUPER || format == SK_Q6_SUPER16 ? kSuper
                                                                                           : kGroup;
}

static constexpr int64_t columns_per_block(int32_t format) {
    return format == SK_Q8 ? 64 : format == SK_MXFP4 ? 128 : columns_per_scale_block(format);
}

static constexpr int64_t block_bytes(int32_t format) {
    switch (format) {
        case SK_Q4: return 320;
        case SK_Q4_SUPER: return 2368;
        case SK_Q8:
        case SK_MXFP4: return 1088;
        case SK_Q8_MINIMUM: return 576;
        case SK_Q8_SUPER: return 4416;
        case SK_Q6_SUPER16: return 3392;
        case SK_F32: return 64;
        default: return 32;
    }
}

static constexpr int64_t code_bytes(int32_t format) {
    return is_4_bit(format) ? 256 : format == SK_Q6_SUPER16 ? 384 : 512;
}

// Of a group of 32 columns, with its share of the scales.
static constexpr int64_t group_bytes(int32_t format) {
    return block_bytes(format) * kGroup / columns_per_block(format);
}

// Where the codes of a group of 32 columns begin in a panel.
static constexpr int64_t codes_at(int32_t format, int64_t group) {
    const int64_t groups = columns_per_block(format) / kGroup;
    const int64_t scales = groups == 8 ? 320 : groups == 4 ? 64 : 0;
    return group / groups * block_bytes(format) + scales + group % groups * code_bytes(format);
}

static constexpr int64_t panel_bytes(int32_t format, int64_t columns) {
    if (format == SK_MXFP4) return codes_at(format, columns / kGroup - 1) + 256;
    const int64_t per_block = columns_per_block(format);
    return padded((columns + per_block - 1) / per_block * block_bytes(format));
}

static inline std::array<sk_matrix*, 17> matrices(sk_layer& layer) {
    return {&layer.query,       &layer.key,       &layer.value,       &layer.output,     &layer.gate,
            &layer.up,          &layer.down,      &layer.router,      &layer.mixer_gate, &layer.input_gate,
            &layer.shared_gate, &layer.shared_up, &layer.shared_down, &layer.shared_router,
            &layer.input_projection, &layer.attention_conv, &layer.mlp_conv};
}

static inline int64_t matrix_bytes(const sk_matrix& matrix) {
    return panels(matrix.rows) * panel_bytes(matrix.format, matrix.columns);
}

// Where the scales of the block with this group of 32 columns begin; of Q8 the scales of this group.
static constexpr int64_t scales_at(int32_t format, int64_t group) {
    switch (format) {
        case SK_Q4: return group * 320 + 256;
        case SK_Q8: return group / 2 * 1088 + 1024 + group % 2 * 32;
        case SK_Q8_MINIMUM: return group * 576 + 512;
        case SK_MXFP4: return group / 4 * 1088 + group % 4 * 16;
        default: return group / 8 * block_bytes(format);
    }
}

}  // namespace sk
