// The kernels for AMX int8: the AVX-512 ones but for wide linear layers; this file alone is compiled with tile
// instructions. SK_TILES names a test's header that emulates them.
#if defined(__AVX512VNNI__) && (defined(__AMX_INT8__) || defined(SK_TILES))
#include "vector_avx512.h"
// The vectors first: what follows is written with them.
#if defined(SK_TILES)
#include SK_TILES
#endif
#include "kernels.h"

namespace sk {
namespace {

#include "panels.inc"
#include "linear_amx.inc"

Kernels with_tiles() {
    Kernels kernels = *avx512_kernels();
    kernels.name = "AMX int8 and AVX-512 VNNI";
    kernels.linear = linear;
    return kernels;
}

}  // namespace

const Kernels* amx_kernels() {
    static const Kernels kernels = with_tiles();
    return &kernels;
}

}  // namespace sk
#else
#include "kernels.h"

namespace sk {
const Kernels* amx_kernels() { return nullptr; }
}  // namespace sk
#endif
