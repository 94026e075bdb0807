// Jobs for three threads under a limit: prints which threads did pieces under a limit of one, then of two, and how many
// pieces were not done once, or by a thread too many, while the limit changed under way.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "thread_pool.h"

namespace {

constexpr int kPieces = 64;

void work_a_little() {
    for (volatile int i = 0; i < 20000; i = i + 1) {
    }
}

// Whether each of three threads did a piece of some job, as bits.
int taking_part(sk::ThreadPool& pool, int limit) {
    pool.limit(limit);
    std::atomic<int> threads{0};
    for (int job = 0; job < 100; job++) {
        auto piece = [&](int64_t, int thread) {
            threads |= 1 << thread;
            work_a_little();
        };
        pool.each(kPieces, piece);
    }
    return threads;
}

}  // namespace

int main() {
    sk::ThreadPool& pool = sk::ThreadPool::instance();
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.start(3);
    const int alone = taking_part(pool, 1), two = taking_part(pool, 2), all = taking_part(pool, 0);
    std::atomic<bool> over{false};
    std::thread changing([&] {
        for (int limit = 0; !over; limit = (limit + 1) % 4) {
            pool.limit(limit);
            work_a_little();
        }
    });
    std::atomic<int> done[kPieces];
    long wrong = 0;
    for (int job = 0; job < 20000; job++) {
        for (auto& each : done) each = 0;
        auto piece = [&](int64_t number, int thread) { done[number] += thread < 3 ? 1 : 2; };
        pool.each(kPieces, piece);
        for (const auto& each : done) wrong += each != 1;
    }
    over = true;
    changing.join();
    std::printf("%d %d %d %ld\n", alone, two, all, wrong);
    std::fflush(stdout);
    std::_Exit(0);
}
