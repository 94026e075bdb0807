// Counter-based random numbers, as in `engine.sampling.rng`: SplitMix64 (Steele, Lea & Flood 2014, figure 16).
#pragma once
#include <stdint.h>

namespace sk {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u, kDrawsPerRound = 1u << 16;
constexpr uint64_t kXtcStream = 5;

inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// Uniform in [0, 1), of one index of a round or of a position in the text.
inline double uniform(uint64_t seed, uint64_t number, uint64_t stream, uint64_t index) {
    const uint64_t key = mix(mix(seed + kGolden) + stream * kGolden);
    return double(mix(key + (number * kDrawsPerRound + index + 1) * kGolden) >> 11) * 0x1p-53;
}

}  // namespace sk
