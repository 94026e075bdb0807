// Jobs between which threads may fetch memory, which is freed at the same time: prints how many pieces were not done once.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "thread_pool.h"

int main() {
    sk::ThreadPool& pool = sk::ThreadPool::instance();
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.start(4);
    long wrong = 0;
    for (int round = 0; round < 20000; round++) {
        auto fetch = std::make_shared<sk::Fetch>();
        std::vector<char> weights(1 << 20);
        fetch->add(weights.data(), int64_t(weights.size()));
        std::atomic<int> done[8] = {};
        auto piece = [&](int64_t i, int) { done[i]++; };
        pool.each(8, piece);
        if (round % 100 == 0) pool.will_fetch(fetch);
        pool.fetch_next();
        pool.each(8, piece);
        for (auto& each : done) wrong += each.load() != 2;
    }
    std::printf("%ld\n", wrong);
    std::fflush(stdout);
    std::_Exit(0);
}
