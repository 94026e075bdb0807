// The kernels without any vector instructions.
#include "vector_scalar.h"
// The vectors first: the kernels are written with them.
#include "kernels.inc"

namespace sk {
const Kernels& scalar_kernels() { return kKernels; }
}  // namespace sk
