// Jobs for many threads and for few in turn: prints how many pieces of the latter a thread did that had no part in them.
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "thread_pool.h"

int main() {
    sk::ThreadPool& pool = sk::ThreadPool::instance();
    std::lock_guard<std::mutex> lock(pool.mutex);
    std::atomic<long> wrong{0};
    for (int round = 0; round < 400000; round++) {
        const int threads = round % 2 ? 6 : 2;
        pool.start(threads);
        auto piece = [&](int64_t, int thread) {
            if (thread >= threads) wrong++;
            for (volatile int i = 0; i < 200; i = i + 1) {
            }
        };
        pool.each(8, piece);
    }
    std::printf("%ld\n", wrong.load());
    std::fflush(stdout);
    std::_Exit(0);
}
