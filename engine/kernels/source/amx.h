// Whether AMX tiles can be used here, and give the sums that AVX-512 gives.
#pragma once
#include "kernels.h"

namespace sk {

struct Amx {
    const Kernels* kernels;  // null where they cannot be used
    const char* hindrance;   // why not, as a sentence without its end
    bool wrong;              // they are there, but gave other sums
};

// Asks the processor and the operating system, which from then on lets this process use tiles, and multiplies small
// matrices of all formats. `vectors`: the AVX-512 kernels, null where this processor cannot run them.
Amx find_amx(const Kernels* vectors);

}  // namespace sk
