#include "amx.h"

#include <string.h>

#include <initializer_list>
#include <vector>

#include "activations.h"
#include "packing.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sk {

namespace {

constexpr const char* kNone = "this processor has no AMX int8 instructions";

#if defined(SK_TILES)
const char* hindrance_here() { return nullptr; }  // a test's stand-in needs no such processor
#elif defined(__x86_64__) && defined(__linux__)
// Tiles of eight names, 16 rows and 64 bytes a row (palette 1), and int8 products of them.
bool has_tiles() {
    constexpr uint32_t kTile = 1u << 24, kInt8 = 1u << 25, kNames = 8, kRows = 16, kRowBytes = 64;
    uint32_t a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile) || !(d & kInt8)) return false;
    return __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) && b >> 16 >= kNames && (b & 0xffff) >= kRowBytes &&
           (c & 0xffff) >= kRows;
}

// The operating system saves configuration and data of tiles when it switches threads (XCR0).
bool keeps_tiles() {
    constexpr uint32_t kState = 3u << 17;
    uint32_t low, high;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & kState) == kState;
}

// Linux gives room for a thread's tiles to processes that have asked (Documentation/arch/x86/xstate.rst).
bool may_use_tiles() {
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

const char* hindrance_here() {
    if (!has_tiles()) return kNone;
    if (!keeps_tiles()) return "the operating system does not keep AMX tiles";
    if (!may_use_tiles()) return "the operating system does not let this process use AMX tiles";
    return nullptr;
}
#else
const char* hindrance_here() { return kNone; }
#endif

class Random {
   public:
    uint32_t below(uint32_t limit) {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return uint32_t(state_ >> 33) % limit;
    }

   private:
    uint64_t state_ = 1;
};

// Whether both give the same bits for a matrix of this format whose last panel is not full, over two tiles of tokens
// and a few more.
bool same_bits(const Kernels& one, const Kernels& other, int32_t format, Random& random) {
    constexpr int64_t rows = 20, columns = 2 * kSuper, tokens = 28;
    std::vector<uint8_t> codes(rows * columns), sub(rows * columns / 16), sub_minimum(sub.size());
    std::vector<uint16_t> scale(rows * columns / kGroup), minimum(scale.size());
    std::vector<uint8_t> exponents(scale.size());
    for (uint8_t& code : codes) code = uint8_t(random.below(256));
    for (std::vector<uint8_t>* each : {&sub, &sub_minimum})
        for (uint8_t& value : *each) value = uint8_t(random.below(64));
    // Halves around 2^-11 and below -2^-8.
    for (uint16_t& value : scale) value = uint16_t(0x1000 + random.below(1024));
    for (uint8_t& value : exponents) value = uint8_t(114 + random.below(8));
    for (uint16_t& value : minimum) value = uint16_t(0x9c00 + random.below(1024));
    Buffer<uint8_t> packed;
    const void* scales = format == SK_MXFP4 ? (const void*)exponents.data() : scale.data();
    pack(format, rows, columns, {codes.data(), scales, minimum.data(), sub.data(), sub_minimum.data()},
         packed.reserve(panels(rows) * panel_bytes(format, columns)));
    Activations x;
    x.reserve(tokens, columns);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t k = 0; k < columns; k++) x.token(t)[k] = float(int32_t(random.below(20001)) - 10000) * 1e-4f;
        x.quantize(one, t);
    }
    const sk_matrix matrix = {format, 0, rows, columns, packed.get()};
    std::vector<float> y(tokens * rows), same(tokens * rows);
    for (const int64_t count : {int64_t(11), tokens}) {
        one.linear(matrix, x.inputs(), 0, panels(rows), 0, count, nullptr, false, y.data(), rows);
        other.linear(matrix, x.inputs(), 0, panels(rows), 0, count, nullptr, false, same.data(), rows);
        if (memcmp(y.data(), same.data(), size_t(count * rows) * sizeof(float)) != 0) return false;
    }
    return true;
}

}  // namespace

Amx find_amx(const Kernels* vectors) {
    if (!vectors) return {nullptr, kNone, false};
    if (const char* hindrance = hindrance_here()) return {nullptr, hindrance, false};
    const Kernels* tiles = amx_kernels();
    if (!tiles) return {nullptr, "the compiler that built the kernels does not know AMX", false};
    Random random;
    for (int32_t format = SK_Q4; is_quantized(format); format++)
        if (!same_bits(*vectors, *tiles, format, random))
            return {nullptr,
                    "the AMX instructions of this processor gave other sums than its AVX-512 ones, so they are not used",
                    true};
    return {tiles, "", false};
}

}  // namespace sk
