// Jobs in which a piece on another thread than the caller's throws: prints what the caller catches, and how many pieces
// of a job that comes then are done.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "thread_pool.h"

int main() {
    sk::ThreadPool& pool = sk::ThreadPool::instance();
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.start(2);
    std::atomic<int> begun{0}, done{0};
    auto throwing = [&](int64_t, int thread) {
        begun++;
        while (begun.load() < 2) std::this_thread::yield();  // so that both threads have a piece
        if (thread) throw std::bad_alloc();
    };
    auto sound = [&](int64_t, int) { done++; };
    try {
        pool.each(2, throwing);
        std::printf("nothing, ");
    } catch (const std::bad_alloc&) {
        std::printf("bad_alloc, ");
    }
    pool.each(9, sound);
    std::printf("%d\n", done.load());
    std::fflush(stdout);
    std::_Exit(0);
}
