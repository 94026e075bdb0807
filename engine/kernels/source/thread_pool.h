// Threads that process the pieces of a job together with the caller.
#pragma once
#include <limits.h>
#include <stdint.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace sk {

// Memory to be prefetched by idle threads, in chunks.
struct Fetch {
    static constexpr int64_t kChunk = 16384;

    void add(const void* data, int64_t bytes);

    std::vector<const char*> chunks;
    std::atomic<int64_t> next{0};  // the first chunk that is not taken
};

// Every thread has a run of adjacent pieces, so that it reads memory in order, and when it has done them it takes pieces
// of others. Pieces are taken one by one, and a job is over when all of them are done, not when all threads have
// arrived: a thread that is preempted delays only the piece that it has.
//
// One caller at a time (see `mutex`). Threads wait for work spinning for about a millisecond, then asleep.
class ThreadPool {
   public:
    static ThreadPool& instance();

    // To be held while `start` and `run` are used.
    std::mutex mutex;

    // Number of threads of the next jobs, the caller included; worker w has number w.
    void start(int threads);

    // Calls work(context, piece, thread) for every piece from 0 to count - 1. What a piece throws, on whichever thread,
    // is thrown here when the job is over: the first of several, and pieces that had not begun by then are left out.
    using Work = void (*)(void* context, int64_t piece, int thread);
    void run(int64_t count, Work work, void* context);

    template <typename Body>
    void each(int64_t count, Body& body) {
        run(count, [](void* it, int64_t piece, int thread) { (*static_cast<Body*>(it))(piece, thread); }, &body);
    }

    int threads() const { return active_; }

    // Sets the maximum number of threads, the caller included, also of a running job; 0: no limit. May be called by any
    // thread, without `mutex`.
    void limit(int threads) { limit_.store(threads > 0 ? threads : INT_MAX); }

    // Names what the next `fetch_next` prefetches. The list is kept for good: a thread may still be reading it.
    void will_fetch(const std::shared_ptr<Fetch>& fetch);

    // Lets idle threads prefetch it into the cache that all share; to be called between jobs.
    void fetch_next();

   private:
    // Number of threads that process pieces; they have the lowest numbers.
    int participants() const { return std::min(active_.load(), limit_.load()); }
    struct Share;
    bool take_from(Share& share, int thread);
    bool may_fetch() const;
    void fetch_chunk();
    void work_as(int number);
    void take_pieces(int thread);
    void wake_workers();
    void do_piece(const Share& share, int64_t piece, int thread);

    // The pieces of a thread, and its work, in one cache line: each line that another core has written costs up to 0.2 µs.
    struct alignas(64) Share {
        std::atomic<uint64_t> ticket{0};  // upper half: number of the job; lower half: pieces not yet taken
        std::atomic<int64_t> end{0};      // the piece after the last one
        Work work = nullptr;
        void* context = nullptr;
    };

    static constexpr int kMostThreads = 256;
    Share shares_[kMostThreads];
    alignas(64) std::atomic<uint32_t> job_{0};
    std::atomic<int> used_{0};  // shares of the job
    alignas(64) std::atomic<int64_t> unfinished_{0};
    alignas(64) std::atomic<int> sleeping_{0};
    std::atomic<int> active_{1};
    std::atomic<bool> caller_sleeps_{false};
    std::atomic<int> limit_{INT_MAX};
    std::atomic<Fetch*> fetch_{nullptr};
    Fetch* wanted_fetch_ = nullptr;
    std::vector<std::shared_ptr<Fetch>> fetches_;
    std::atomic<bool> failed_{false};
    std::exception_ptr failure_;  // written by the thread that has set `failed_`, read when the job is over
    std::vector<std::thread> workers_;
    std::mutex sleep_;
    std::condition_variable work_there_, all_done_;
};

}  // namespace sk
