#include "packing.h"

#include <string.h>

#include "half.h"
#include "layout.h"

namespace sk {

namespace {

constexpr int64_t kFour = 4;  // columns whose codes lie next to each other

// Where the code of a column lies within its panel, in bytes.
inline int64_t code_offset(int32_t format, int64_t column, int64_t n) {
    const int64_t b = column / kGroup, k = column % kGroup;
    return codes_at(format, b) + (code_bytes(format) < 512 ? k / 8 : k / 4) * 64 + n * 4 + k % 4;
}

// Where the high bits of a 6-bit code lie within its panel.
inline int64_t high_offset(int64_t column, int64_t n) {
    return codes_at(SK_Q6_SUPER16, column / kGroup) + 256 + column % kGroup / 16 * 64 + n * 4 + column % 4;
}

// Scale of the codes times 2 of an E8M0 exponent; that of 0, 2^-128, is taken for 0.
float from_exponent(uint8_t exponent) { return float_of(uint32_t(exponent) << 23) * 0.5f; }

void put_half(uint8_t* block, int64_t offset, int64_t n, uint16_t value) { memcpy(block + offset + 2 * n, &value, 2); }

uint16_t get_half(const uint8_t* block, int64_t offset, int64_t n) {
    uint16_t value;
    memcpy(&value, block + offset + 2 * n, 2);
    return value;
}

void pack_scales(int32_t format, int64_t row, int64_t n, int64_t columns, const PlainMatrix& plain, uint8_t* panel) {
    const int64_t blocks = columns / columns_per_scale_block(format), groups = columns_per_scale_block(format) / kGroup;
    for (int64_t b = 0; b < blocks; b++) {
        uint8_t* block = panel + scales_at(format, b * groups);
        const int64_t bytes = scale_bytes(format);
        memcpy(block + bytes * n, (const uint8_t*)plain.scale + (row * blocks + b) * bytes, size_t(bytes));
        if (has_minimum(format)) put_half(block, 32, n, plain.minimum[row * blocks + b]);
        if (format == SK_Q4_SUPER || format == SK_Q8_SUPER)
            for (int64_t i = 0; i < 8; i++) {
                block[64 + 16 * i + n] = ((const uint8_t*)plain.sub_scale)[(row * blocks + b) * 8 + i];
                block[192 + 16 * i + n] = plain.sub_minimum[(row * blocks + b) * 8 + i];
            }
        if (format == SK_Q6_SUPER16)
            for (int64_t i = 0; i < 16; i++)
                block[32 + 16 * i + n] = ((const uint8_t*)plain.sub_scale)[(row * blocks + b) * 16 + i];
    }
}

}  // namespace

void pack(int32_t format, int64_t rows, int64_t columns, const PlainMatrix& plain, uint8_t* packed) {
    const int64_t size = panel_bytes(format, columns);
    memset(packed, 0, size_t(size * panels(rows)));
    const int64_t bytes = format == SK_F32 ? 4 : 2;
    for (int64_t row = 0; row < rows; row++) {
        uint8_t* panel = packed + row / kPanel * size;
        const int64_t n = row % kPanel;
        const uint8_t* codes = (const uint8_t*)plain.codes + row * columns * (is_quantized(format) ? 1 : bytes);
        if (!is_quantized(format)) {
            for (int64_t k = 0; k < columns; k++)
                memcpy(panel + (k * kPanel + n) * bytes, codes + k * bytes, size_t(bytes));
            continue;
        }
        for (int64_t k = 0; k < columns; k += kFour) {
            uint8_t* four = panel + code_offset(format, k, n);
            if (code_bytes(format) == 512) {
                memcpy(four, codes + k, kFour);
                continue;
            }
            const int raised = format == SK_Q6_SUPER16 ? 32 : 0;  // stored codes are not signed
            for (int64_t i = 0; i < kFour; i++)
                four[i] = uint8_t(four[i] | ((codes[k + i] + raised) & 15) << (k % 8 < 4 ? 0 : 4));
            if (format == SK_Q6_SUPER16)
                for (int64_t i = 0; i < kFour; i++) {
                    uint8_t& high = panel[high_offset(k, n) + i];
                    high = uint8_t(high | ((codes[k + i] + raised) >> 4 & 3) << k % 16 / 4 * 2);
                }
        }
        pack_scales(format, row, n, columns, plain, panel);
    }
}

void unpack_row(const sk_matrix& matrix, int64_t row, float* out) {
    const int32_t format = matrix.format;
    const int64_t columns = matrix.columns, n = row % kPanel;
    const uint8_t* panel = (const uint8_t*)matrix.data + row / kPanel * panel_bytes(format, columns);
    if (!is_quantized(format)) {
        for (int64_t k = 0; k < columns; k++) {
            const int64_t i = k * kPanel + n;
            out[k] = format == SK_BF16  ? from_bfloat(((const uint16_t*)panel)[i])
                     : format == SK_F16 ? from_half(((const uint16_t*)panel)[i])
                                        : ((const float*)panel)[i];
        }
        return;
    }
    const int64_t group = format == SK_Q6_SUPER16 ? 16 : kGroup;
    for (int64_t g = 0; g < columns / group; g++) {
        const uint8_t* block = panel + scales_at(format, g * group / kGroup);
        float scale, minimum = 0.0f;
        if (format == SK_Q6_SUPER16) {
            scale = from_half(get_half(block, 0, n)) * float(int8_t(block[32 + g % 16 * 16 + n]));
        } else if (format == SK_Q4_SUPER || format == SK_Q8_SUPER) {
            scale = from_half(get_half(block, 0, n)) * float(block[64 + g % 8 * 16 + n]);
            minimum = -(from_half(get_half(block, 32, n)) * float(block[192 + g % 8 * 16 + n]));
        } else {
            scale = format == SK_MXFP4 ? from_exponent(block[n]) : from_half(get_half(block, 0, n));
            if (has_minimum(format)) minimum = from_half(get_half(block, 32, n));
        }
        for (int64_t k = g * group; k < (g + 1) * group; k += kFour) {
            const uint8_t* four = panel + code_offset(format, k, n);
            for (int64_t i = 0; i < kFour; i++) {
                int code = code_bytes(format) < 512 ? (k % 8 < 4 ? four[i] & 15 : four[i] >> 4) : int8_t(four[i]);
                if (format == SK_Q6_SUPER16)
                    code += ((panel[high_offset(k, n) + i] >> k % 16 / 4 * 2 & 3) << 4) - 32;
                if (format == SK_MXFP4) code = kDoubledE2m1[code];
                out[k + i] = float(code) * scale + minimum;
            }
        }
    }
}

void pick_rows(const sk_matrix& matrix, const int64_t* rows, int64_t count, uint8_t* packed) {
    const int64_t size = panel_bytes(matrix.format, matrix.columns);
    memset(packed, 0, size_t(size * panels(count)));
    for (int64_t i = 0; i < count; i++) {
        const int64_t from = rows[i] % kPanel, to = i % kPanel;
        const uint8_t* source = (const uint8_t*)matrix.data + rows[i] / kPanel * size;
        uint8_t* panel = packed + i / kPanel * size;
        const auto move = [&](int64_t at, int64_t bytes) {
            memcpy(panel + at + to * bytes, source + at + from * bytes, size_t(bytes));
        };
        if (!is_quantized(matrix.format)) {
            const int64_t bytes = matrix.format == SK_F32 ? 4 : 2;
            for (int64_t k = 0; k < matrix.columns; k++) move(k * kPanel * bytes, bytes);
            continue;
        }
        for (int64_t k = 0; k < matrix.columns; k += kFour) {
            if (code_bytes(matrix.format) == 512 || k % 8 == 0) move(code_offset(matrix.format, k, 0), kFour);
            if (matrix.format == SK_Q6_SUPER16 && k % 16 == 0) move(high_offset(k, 0), kFour);
        }
        const int64_t step = columns_per_scale_block(matrix.format) / kGroup;
        for (int64_t g = 0; g < matrix.columns / kGroup; g += step) {
            const int64_t at = scales_at(matrix.format, g);
            move(at, scale_bytes(matrix.format));
            if (has_minimum(matrix.format)) move(at + 32, 2);
            if (step == 1) continue;
            // Scales of the groups, then their minima or the scales of the second halves of Q6_SUPER16.
            const int64_t first = matrix.format == SK_Q6_SUPER16 ? 32 : 64;
            for (int64_t j = 0; j < 16; j++) move(at + first + j * kPanel, 1);
        }
    }
}

}  // namespace sk
