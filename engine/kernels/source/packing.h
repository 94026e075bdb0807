// Matrices into the packed layout and back.
#pragma once
#include <stdint.h>

#include "api.h"

namespace sk {

// Arrays as sk_pack takes them; see the Python module packed_matrix for what each format has.
struct PlainMatrix {
    const void *codes, *scale;
    const uint16_t* minimum;
    const void* sub_scale;
    const uint8_t* sub_minimum;
};

void pack(int32_t format, int64_t rows, int64_t columns, const PlainMatrix& plain, uint8_t* packed);

// One row as floats, exactly the weights that the kernels compute with.
void unpack_row(const sk_matrix& matrix, int64_t row, float* out);

// A matrix of some rows, in the order given, as they are.
void pick_rows(const sk_matrix& matrix, const int64_t* rows, int64_t count, uint8_t* packed);

}  // namespace sk
