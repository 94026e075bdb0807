// The kernels for AVX2 with FMA and F16C; this file alone is compiled with those instructions.
#if defined(__AVX2__)
#include "vector_avx2.h"
// The vectors first: the kernels are written with them.
#include "kernels.inc"

namespace sk {
const Kernels* avx2_kernels() { return &kKernels; }
}  // namespace sk
#else
#include "kernels.h"

namespace sk {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace sk
#endif
