#include "variants.h"

#include <atomic>
#include <initializer_list>

#include "amx.h"

#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace sk {

namespace {

const Amx& amx();

#if defined(__aarch64__)
bool has_neon_dot_products() {
#if defined(__linux__)
    constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
    return getauxval(AT_HWCAP) & kDotProducts;
#else
    return true;  // every Apple processor of this kind has them
#endif
}
#endif

const Kernels* variant(int32_t id) {
    switch (id) {
        case SK_SCALAR: return &scalar_kernels();
#if defined(__x86_64__)
        case SK_AVX2:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")
                       ? avx2_kernels()
                       : nullptr;
        case SK_AVX512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                           __builtin_cpu_supports("avx512vnni")
                       ? avx512_kernels()
                       : nullptr;
        case SK_AMX: return amx().kernels;
#elif defined(__aarch64__)
        case SK_NEON: return has_neon_dot_products() ? neon_kernels() : nullptr;
#endif
        default: return nullptr;
    }
}

const Amx& amx() {
    static const Amx found = find_amx(variant(SK_AVX512));
    return found;
}

const Kernels* fastest() {
    for (int32_t id : {SK_AMX, SK_AVX512, SK_AVX2, SK_NEON})
        if (const Kernels* found = variant(id)) return found;
    return &scalar_kernels();
}

std::atomic<const Kernels*>& in_use() {
    static std::atomic<const Kernels*> kernels{fastest()};
    return kernels;
}

}  // namespace

int32_t available_variants() {
    int32_t mask = 0;
    for (int32_t id : {SK_SCALAR, SK_AVX2, SK_AVX512, SK_NEON, SK_AMX})
        if (variant(id)) mask |= id;
    return mask;
}

const char* use_variant(int32_t id) {
    const Kernels* wanted = id == -1 ? fastest() : variant(id);
    if (wanted) in_use().store(wanted);
    return wanted ? nullptr : id == SK_AMX ? amx().hindrance : "this processor cannot run that variant of the kernels";
}

const char* variants_notice() { return amx().wrong ? amx().hindrance : ""; }

const Kernels& kernels() { return *in_use().load(); }

}  // namespace sk
