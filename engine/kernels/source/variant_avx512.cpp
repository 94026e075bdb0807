// The kernels for AVX-512 VNNI; this file alone is compiled with those instructions.
#if defined(__AVX512VNNI__)
#include "vector_avx512.h"
// The vectors first: the kernels are written with them.
#include "kernels.inc"

namespace sk {
const Kernels* avx512_kernels() { return &kKernels; }
}  // namespace sk
#else
#include "kernels.h"

namespace sk {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace sk
#endif
