// The kernels for NEON with dot products; this file alone is compiled with those instructions.
#if defined(__ARM_FEATURE_DOTPROD)
#include "vector_neon.h"
// The vectors first: the kernels are written with them.
#include "kernels.inc"

namespace sk {
const Kernels* neon_kernels() { return &kKernels; }
}  // namespace sk
#else
#include "kernels.h"

namespace sk {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace sk
#endif
