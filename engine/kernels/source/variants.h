// Which kernels this processor can run, and which are in use.
#pragma once
#include "kernels.h"

namespace sk {

int32_t available_variants();              // mask of sk_variant_id
const char* use_variant(int32_t variant);  // -1 for the fastest; why it cannot run here, null where it can
const char* variants_notice();             // which instructions are there but not used, and why; empty if none
const Kernels& kernels();

}  // namespace sk
