// Which kernels this processor can run, and which are in use.
#pragma once
#include "kernels.h"

namespace sk {

int32_t available_variants();       // mask of sk_variant_id
bool use_variant(int32_t variant);  // -1 for the fastest; false where it cannot run here
const Kernels& kernels();

}  // namespace sk
