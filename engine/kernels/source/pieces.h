// How work is cut into pieces for the thread pool.
#pragma once
#include <stdint.h>

#include <algorithm>

#include "thread_pool.h"

namespace sk {

// Pieces per thread and job: enough for a short wait for the last one, few enough that taking them costs nothing.
constexpr int64_t kPiecesPerThread = 6;
// Up to this many tokens what is done to each of them apart is done by the caller alone: waking up costs more.
constexpr int64_t kFewTokens = 8;

// Prefetches memory that other threads have written, whose lines would else be waited for one by one.
inline void prefetch_all(const void* data, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char*)data + at);
}

inline int64_t panels_per_piece(const ThreadPool& pool, int64_t panels) {
    return std::max<int64_t>(1, panels / (pool.threads() * kPiecesPerThread));
}

// body(token), on all threads where there are many tokens.
template <typename Body>
void each_token(ThreadPool& pool, int64_t count, Body body) {
    if (count <= kFewTokens) {
        for (int64_t t = 0; t < count; t++) body(t);
        return;
    }
    const int64_t share = std::max<int64_t>(1, count / (pool.threads() * kPiecesPerThread));
    auto piece = [&](int64_t i, int) {
        for (int64_t t = i * share; t < std::min(count, (i + 1) * share); t++) body(t);
    };
    pool.each((count + share - 1) / share, piece);
}

// body(first panel, last panel, thread) over all panels, the last one exclusive.
template <typename Body>
void each_panels(ThreadPool& pool, int64_t total, Body body) {
    const int64_t share = panels_per_piece(pool, total);
    auto piece = [&](int64_t i, int thread) { body(i * share, std::min(total, (i + 1) * share), thread); };
    pool.each((total + share - 1) / share, piece);
}

}  // namespace sk
